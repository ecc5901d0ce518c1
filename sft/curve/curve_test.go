package curve

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/plotter"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/sft/metrics"
)

func run(steps int) (events []metrics.Event) {
	for i := range steps {
		loss := 1.5 + math.Exp(-float64(i)/20)
		if i%10 == 0 {
			events = append(events, metrics.Event{Kind: metrics.Eval, Step: i, Values: map[string]float64{metrics.Loss: loss}})
		}
		events = append(events, metrics.Event{Kind: metrics.Train, Step: i + 1,
			Values: map[string]float64{metrics.Loss: loss, metrics.LearningRate: 1e-4}})
	}
	return events
}

// uses tells whether a picture has a colour.
func uses(img image.Image, want color.NRGBA) bool {
	r, g, b, _ := want.RGBA()
	box := img.Bounds()
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			if r2, g2, b2, _ := img.At(x, y).RGBA(); r == r2 && g == g2 && b == b2 {
				return true
			}
		}
	}
	return false
}

func picture(t *testing.T, events []metrics.Event, opts Options) image.Image {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Draw(&b, events, opts))
	img, err := png.Decode(&b)
	require.NoError(t, err)
	return img
}

func TestDrawShowsEverySeries(t *testing.T) {
	img := picture(t, run(60), Options{})
	require.Equal(t, image.Pt(1200, 800), img.Bounds().Size())
	for _, c := range []color.NRGBA{blue, orange, green} {
		require.True(t, uses(img, c))
	}
	onlyTraining := []metrics.Event{{Kind: metrics.Train, Step: 1, Values: map[string]float64{metrics.Loss: 2}}}
	img = picture(t, onlyTraining, Options{Width: 400, Height: 300})
	require.Equal(t, image.Pt(400, 300), img.Bounds().Size())
	require.False(t, uses(img, orange))
	require.False(t, uses(img, green))
}

func TestDrawLeavesOutWhatIsNoNumber(t *testing.T) {
	events := append(run(20), metrics.Event{Kind: metrics.Train, Step: 21, Values: map[string]float64{metrics.Loss: math.NaN()}},
		metrics.Event{Kind: metrics.Eval, Step: 21, Values: map[string]float64{metrics.Loss: math.Inf(1)}})
	s := collect(events)
	require.Len(t, s.train, 20)
	require.Len(t, s.eval, 2)
	picture(t, events, Options{})
	require.ErrorIs(t, Draw(&bytes.Buffer{}, events[len(events)-2:], Options{}), ErrEmpty)
}

func TestSmoothIsATrailingMean(t *testing.T) {
	points := plotter.XYs{{X: 1, Y: 4}, {X: 2, Y: 2}, {X: 3, Y: 0}, {X: 4, Y: 0}}
	require.Equal(t, plotter.XYs{{X: 1, Y: 4}, {X: 2, Y: 3}, {X: 3, Y: 1}, {X: 4, Y: 0}}, smooth(points, 2))
}

func TestSaveReadsAMetricsFile(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "metrics.jsonl")
	out := filepath.Join(dir, "curve.png")
	require.ErrorIs(t, Save(out, log, Options{}), os.ErrNotExist)
	w, err := metrics.Open(log)
	require.NoError(t, err)
	for _, e := range run(12) {
		require.NoError(t, w.Log(e))
	}
	require.NoError(t, w.Close())
	require.NoError(t, Save(out, log, Options{Title: "A run", Width: 600, Height: 400}))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "no temporary file is left")
	f, err := os.Open(out)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.DecodeConfig(f)
	require.NoError(t, err)
	require.Equal(t, 600, img.Width)
}

func TestTicksAreRoundAndFew(t *testing.T) {
	labels := func(n ticker, low, high float64) (out []string) {
		for _, tick := range n.Ticks(low, high) {
			out = append(out, tick.Label)
		}
		return out
	}
	require.Equal(t, []string{"1.4", "1.6", "1.8", "2", "2.2", "2.4", "2.6"}, labels(8, 1.3, 2.75))
	require.Equal(t, []string{"0", "1e-4", "2e-4"}, labels(3, -8e-6, 2.08e-4))
	require.Equal(t, []string{"0", "500", "1000"}, labels(3, -20, 1020))
	require.Empty(t, labels(3, 1, 1))
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(-1e6, 1e6).Draw(t, "low")
		span := rapid.Float64Range(1e-6, 1e6).Draw(t, "span")
		n := len(ticker(6).Ticks(low, low+span))
		require.LessOrEqual(t, n, 7)
		require.GreaterOrEqual(t, n, 1)
	})
}
