// Package curve draws the learning curve of a run from its metrics file: the loss of each training step and its moving
// average, the evaluations, and the learning rate below them.
package curve

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/gofsdp/gofsdp/sft/metrics"
)

// Options of Draw and Save. The zero value works.
type Options struct {
	// Title above the picture; "" means "Learning curve".
	Title string
	// Width and Height in pixels; 0 means 1200 and 800.
	Width, Height int
	// Window is the number of training points that the moving average looks back; 0 means a twentieth of them, at least 5.
	Window int
}

// ErrEmpty is returned where no event has a finite loss.
var ErrEmpty = errors.New("there is no loss to draw")

var (
	blue   = color.NRGBA{R: 0x1f, G: 0x5f, B: 0xa8, A: 0xff}
	pale   = color.NRGBA{R: 0x1f, G: 0x5f, B: 0xa8, A: 0x50}
	orange = color.NRGBA{R: 0xd9, G: 0x5f, B: 0x02, A: 0xff}
	green  = color.NRGBA{R: 0x2a, G: 0x7f, B: 0x4f, A: 0xff}
	grid   = color.NRGBA{A: 0x18}
	ink    = color.NRGBA{R: 0x33, G: 0x33, B: 0x33, A: 0xff}
)

// Save draws the metrics file (see package metrics) as a PNG, which appears at path only when it is whole.
func Save(path, metricsPath string, opts Options) error {
	events, err := metrics.ReadFile(metricsPath)
	if err != nil {
		return fmt.Errorf("curve: %w", err)
	}
	var b bytes.Buffer
	if err := Draw(&b, events, opts); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("curve: %w", err)
	}
	_, err = tmp.Write(b.Bytes())
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("curve: write %s: %w", path, err)
	}
	return nil
}

// Draw writes a PNG of events. Steps that a resumed run has done again count once; losses that are NaN or infinite are left
// out.
func Draw(w io.Writer, events []metrics.Event, opts Options) error {
	s := collect(events)
	if len(s.train)+len(s.eval) == 0 {
		return fmt.Errorf("curve: %w", ErrEmpty)
	}
	if opts.Width <= 0 || opts.Height <= 0 {
		opts.Width, opts.Height = 1200, 800
	}
	if opts.Title == "" {
		opts.Title = "Learning curve"
	}
	upper, err := lossPlot(s, opts)
	if err != nil {
		return fmt.Errorf("curve: %w", err)
	}
	rows := [][]*plot.Plot{{upper}}
	if len(s.lr) > 0 {
		lower, err := ratePlot(s, upper.X.Min, upper.X.Max)
		if err != nil {
			return fmt.Errorf("curve: %w", err)
		}
		rows = append(rows, []*plot.Plot{lower})
	}
	return render(w, rows, opts)
}

// series are the points to draw, by step.
type series struct {
	train, eval, lr plotter.XYs
}

func collect(events []metrics.Event) (s series) {
	add := func(dst *plotter.XYs, e metrics.Event, name string) {
		y, ok := e.Values[name]
		if ok && !math.IsNaN(y) && !math.IsInf(y, 0) {
			*dst = append(*dst, plotter.XY{X: float64(e.Step), Y: y})
		}
	}
	for _, e := range metrics.LatestRun(events) {
		switch e.Kind {
		case metrics.Train:
			add(&s.train, e, metrics.Loss)
			add(&s.lr, e, metrics.LearningRate)
		case metrics.Eval:
			add(&s.eval, e, metrics.Loss)
		}
	}
	return s
}

// smooth is the mean over the last window points, so that the line lags but never looks ahead.
func smooth(points plotter.XYs, window int) plotter.XYs {
	if window <= 0 {
		window = max(5, len(points)/20)
	}
	out := make(plotter.XYs, len(points))
	for i := range points {
		from := max(0, i+1-window)
		sum := 0.0
		for _, p := range points[from : i+1] {
			sum += p.Y
		}
		out[i] = plotter.XY{X: points[i].X, Y: sum / float64(i+1-from)}
	}
	return out
}

func lossPlot(s series, opts Options) (*plot.Plot, error) {
	p := newPlot()
	p.Title.Text = opts.Title
	p.Y.Label.Text = "loss (nats per token)"
	if len(s.train) > 0 {
		dots, err := plotter.NewScatter(s.train)
		if err != nil {
			return nil, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: pale, Radius: dotRadius(len(s.train)), Shape: draw.CircleGlyph{}}
		line, err := plotter.NewLine(smooth(s.train, opts.Window))
		if err != nil {
			return nil, err
		}
		line.LineStyle = draw.LineStyle{Color: blue, Width: vg.Points(2)}
		p.Add(dots, line)
		p.Legend.Add("training", dots)
		p.Legend.Add("training, moving average", line)
	}
	if len(s.eval) > 0 {
		line, dots, err := plotter.NewLinePoints(s.eval)
		if err != nil {
			return nil, err
		}
		line.LineStyle = draw.LineStyle{Color: orange, Width: vg.Points(1.2), Dashes: []vg.Length{vg.Points(5), vg.Points(3)}}
		dots.GlyphStyle = draw.GlyphStyle{Color: orange, Radius: vg.Points(5), Shape: draw.CircleGlyph{}}
		labels, err := ends(s.eval)
		if err != nil {
			return nil, err
		}
		p.Add(line, dots, labels)
		p.Legend.Add("evaluation", line, dots)
	}
	pad(&p.X)
	pad(&p.Y)
	return p, nil
}

// dotRadius makes many points small.
func dotRadius(n int) vg.Length {
	if n > 500 {
		return vg.Points(1.5)
	}
	return vg.Points(2.5)
}

// ends writes the first and the last evaluation beside their markers: the two numbers that one looks for.
func ends(eval plotter.XYs) (*plotter.Labels, error) {
	points := plotter.XYLabels{XYs: plotter.XYs{eval[0]}, Labels: []string{fmt.Sprintf("%.3f", eval[0].Y)}}
	if last := eval[len(eval)-1]; len(eval) > 1 {
		points.XYs = append(points.XYs, last)
		points.Labels = append(points.Labels, fmt.Sprintf("%.3f", last.Y))
	}
	labels, err := plotter.NewLabels(points)
	if err != nil {
		return nil, err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Color = orange
		labels.TextStyle[i].Font = font.Font{Variant: "Sans", Weight: xfont.WeightBold, Size: 13}
		labels.TextStyle[i].XAlign = draw.XCenter
	}
	labels.Offset = vg.Point{Y: vg.Points(9)}
	return labels, nil
}

func ratePlot(s series, left, right float64) (*plot.Plot, error) {
	p := newPlot()
	p.X.Label.Text = "optimiser step"
	p.Y.Label.Text = "learning rate"
	line, err := plotter.NewLine(s.lr)
	if err != nil {
		return nil, err
	}
	line.LineStyle = draw.LineStyle{Color: green, Width: vg.Points(2)}
	p.Add(line)
	pad(&p.Y)
	p.X.Min, p.X.Max = left, right
	p.Y.Tick.Marker = ticker(3)
	return p, nil
}

// newPlot has the looks that both panels share.
func newPlot() *plot.Plot {
	p := plot.New()
	p.Title.TextStyle.Font.Size = 18
	p.Title.TextStyle.Color = ink
	p.Title.Padding = vg.Points(10)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size = 14
		axis.Label.TextStyle.Color = ink
		axis.Label.Padding = vg.Points(6)
		axis.Tick.Label.Font.Size = 12
		axis.Tick.Label.Color = ink
		axis.Tick.Color, axis.Color = ink, ink
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticker(10), ticker(6)
	for _, style := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		style.Variant = "Sans"
	}
	p.Legend.TextStyle.Font.Size = 13
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(4)
	p.Legend.XOffs, p.Legend.YOffs = -vg.Points(12), -vg.Points(8)
	p.Legend.ThumbnailWidth = vg.Points(28)
	lines := plotter.NewGrid()
	lines.Horizontal.Color, lines.Vertical.Color = grid, grid
	p.Add(lines)
	return p
}

// pad leaves room around the data, also where they are a single value.
func pad(axis *plot.Axis) {
	room := 0.04 * (axis.Max - axis.Min)
	if room == 0 {
		room = max(math.Abs(axis.Max)*0.05, 1e-9)
	}
	axis.Min, axis.Max = axis.Min-room, axis.Max+room
}

// render puts the panels above each other, the first one taller, with their axes aligned.
func render(w io.Writer, rows [][]*plot.Plot, opts Options) error {
	const dpi = 96
	px := func(n int) vg.Length { return vg.Length(n) * vg.Inch / dpi }
	canvas := vgimg.NewWith(vgimg.UseWH(px(opts.Width), px(opts.Height)), vgimg.UseDPI(dpi))
	page := draw.New(canvas)
	page = draw.Crop(page, vg.Points(12), -vg.Points(18), vg.Points(10), -vg.Points(10))
	if len(rows) == 1 {
		rows[0][0].X.Label.Text = "optimiser step"
		rows[0][0].Draw(page)
	} else {
		height := page.Max.Y - page.Min.Y
		split := height * 0.3
		upper := draw.Crop(page, 0, 0, split, 0)
		lower := draw.Crop(page, 0, 0, 0, split-height)
		alignLeft(rows[0][0], rows[1][0], upper, lower)
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(w); err != nil {
		return fmt.Errorf("curve: write: %w", err)
	}
	return nil
}

// alignLeft draws both plots with their data areas between the same left and right edges.
func alignLeft(a, b *plot.Plot, ca, cb draw.Canvas) {
	da, db := a.DataCanvas(ca), b.DataCanvas(cb)
	left, right := max(da.Min.X, db.Min.X), min(da.Max.X, db.Max.X)
	a.Draw(draw.Crop(ca, left-da.Min.X, right-da.Max.X, 0, 0))
	b.Draw(draw.Crop(cb, left-db.Min.X, right-db.Max.X, 0, 0))
}
