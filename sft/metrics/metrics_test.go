package metrics_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/sft/metrics"
)

var noon = time.Date(2025, 1, 2, 12, 0, 0, 0, time.UTC)

func TestEventsAreFlatLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	w, err := metrics.Open(path)
	require.NoError(t, err)
	events := []metrics.Event{
		{Time: noon, Kind: metrics.Train, Step: 10, Epoch: 0.25, Values: map[string]float64{metrics.Loss: 1.5, metrics.LearningRate: 2e-4}},
		{Time: noon, Kind: metrics.Eval, Step: 10, Epoch: 0.25, Values: map[string]float64{metrics.Loss: math.Inf(1)}},
		{Time: noon, Kind: "note", Step: 11},
	}
	for _, e := range events {
		require.NoError(t, w.Log(e))
	}
	require.NoError(t, w.Close())
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, `{"time":"2025-01-02T12:00:00Z","kind":"train","step":10,"epoch":0.25,"learning_rate":0.0002,"loss":1.5}
{"time":"2025-01-02T12:00:00Z","kind":"eval","step":10,"epoch":0.25,"loss":"Infinity"}
{"time":"2025-01-02T12:00:00Z","kind":"note","step":11,"epoch":0}
`, string(raw))
	got, err := metrics.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, events, got)
}

func TestNaNSurvives(t *testing.T) {
	line, err := metrics.Event{Kind: "train", Values: map[string]float64{"loss": math.NaN(), "x": math.Inf(-1)}}.MarshalJSON()
	require.NoError(t, err)
	events, err := metrics.Read(bytes.NewReader(append(line, '\n')))
	require.NoError(t, err)
	require.True(t, math.IsNaN(events[0].Values["loss"]))
	require.True(t, math.IsInf(events[0].Values["x"], -1))
	_, err = metrics.Event{Values: map[string]float64{"step": 1}}.MarshalJSON()
	require.ErrorContains(t, err, `cannot be named "step"`)
}

// Whatever a crash leaves of the last line, opening again and reading give the lines before it.
func TestTornLineIsCutOff(t *testing.T) {
	dir := t.TempDir()
	whole := `{"kind":"train","step":1,"loss":1}` + "\n"
	for i, torn := range []string{"", "{", `{"kind":"train","step":2,"loss":1}`, strings.Repeat("x", 9000)} {
		for _, before := range []string{"", whole, whole + strings.Repeat(" ", 5000) + "\n"} {
			path := filepath.Join(dir, "m.jsonl")
			require.NoError(t, os.WriteFile(path, []byte(before+torn), 0o600))
			got, err := metrics.ReadFile(path)
			require.NoError(t, err)
			require.Len(t, got, strings.Count(before, "train"))
			w, err := metrics.Open(path)
			require.NoError(t, err)
			require.NoError(t, w.Log(metrics.Event{Time: noon, Kind: "eval", Step: i}))
			require.NoError(t, w.Close())
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(raw), before))
			require.Equal(t, strings.Count(before, "\n")+1, strings.Count(string(raw), "\n"))
			require.NotContains(t, string(raw), "xx")
		}
	}
}

func TestReadNamesTheLine(t *testing.T) {
	_, err := metrics.Read(strings.NewReader("{\"step\":1}\n\n{\"step\":\"x\"}\n"))
	require.ErrorContains(t, err, `3: field "step"`)
	events, err := metrics.Read(strings.NewReader("{\"step\":1,\"other\":[1],\"word\":\"a\",\"n\":2}\n"))
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"n": 2}, events[0].Values)
}

func TestConcurrentWritersDoNotMixLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.jsonl")
	w, err := metrics.Open(path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				_ = w.Log(metrics.Event{Kind: "train", Step: i})
			}
		})
	}
	wg.Wait()
	require.NoError(t, w.Close())
	events, err := metrics.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, events, 400)
}

func TestLatestRunDropsWhatWasDoneAgain(t *testing.T) {
	at := func(kind string, step int, loss float64) metrics.Event {
		return metrics.Event{Kind: kind, Step: step, Values: map[string]float64{"loss": loss}}
	}
	got := metrics.LatestRun([]metrics.Event{
		at("train", 1, 3), at("train", 2, 2), at("eval", 2, 2), at("train", 3, 1), // broken off; resumed after step 1
		at("train", 2, 2.5), at("eval", 2, 2.25), at("train", 3, 1.5),
	})
	require.Equal(t, []metrics.Event{at("train", 1, 3), at("train", 2, 2.5), at("eval", 2, 2.25), at("train", 3, 1.5)}, got)
}

// records splits a TFRecord file and checks every checksum.
func records(t *testing.T, raw []byte) [][]byte {
	t.Helper()
	masked := func(b []byte) uint32 {
		crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return (crc>>15 | crc<<17) + 0xa282ead8
	}
	var out [][]byte
	for len(raw) > 0 {
		n := int(binary.LittleEndian.Uint64(raw))
		require.Equal(t, masked(raw[:8]), binary.LittleEndian.Uint32(raw[8:]))
		require.Equal(t, masked(raw[12:12+n]), binary.LittleEndian.Uint32(raw[12+n:]))
		out = append(out, raw[12:12+n])
		raw = raw[16+n:]
	}
	return out
}

func TestTensorBoardRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	tb, err := metrics.OpenTensorBoard(dir)
	require.NoError(t, err)
	require.NoError(t, tb.Log(metrics.Event{Time: noon, Kind: "train", Step: 300, Epoch: 0.5, Values: map[string]float64{"loss": 1.5}}))
	require.NoError(t, tb.Close())
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	raw, err := os.ReadFile(files[0])
	require.NoError(t, err)
	got := records(t, raw)
	require.Len(t, got, 2)
	require.Contains(t, string(got[0]), "brain.Event:2")
	// wall_time 1735819200.0, step 300, summary {train/loss 1.5, train/epoch 0.5}
	require.Equal(t, "09"+"000000f09fddd941"+"10ac02"+"2a27"+
		"0a11"+"0a0a"+hex.EncodeToString([]byte("train/loss"))+"15"+"0000c03f"+
		"0a12"+"0a0b"+hex.EncodeToString([]byte("train/epoch"))+"15"+"0000003f", hex.EncodeToString(got[1]))
}
