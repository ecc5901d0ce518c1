// Package metrics writes the numbers of a training run: an append-only JSONL file, and event files for TensorBoard.
//
// A line of the JSONL file is one event, flat, so that jq, pandas and the like read it as it is:
//
//	{"time":"2025-01-02T03:04:05Z","kind":"train","step":10,"epoch":0.25,"grad_norm":0.91,"loss":1.73,"lr":0.0002}
package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// Kinds of events. Others are allowed.
const (
	// Train is an optimiser step, or the mean over the steps since the last event.
	Train = "train"
	// Eval is an evaluation.
	Eval = "eval"
)

// Names of values that the trainer writes and curve draws. Losses are in nats per token.
const (
	Loss         = "loss"
	LearningRate = "learning_rate"
	GradNorm     = "grad_norm"
	TokensPerSec = "tokens_per_second"
	PeakBytes    = "peak_bytes"
)

// Event is one line of a metrics file.
type Event struct {
	// Time of the event; Writer.Log fills it in where it is zero.
	Time time.Time
	// Kind is Train, Eval or a name of the caller's.
	Kind string
	// Step is the number of optimiser steps done.
	Step int
	// Epoch is the position in the data, with a fraction.
	Epoch float64
	// Values are the numbers by name. NaN and infinities are kept. The names time, kind, step and epoch are taken.
	Values map[string]float64
}

// reserved names of the fields beside Values.
var reserved = []string{"time", "kind", "step", "epoch"}

// MarshalJSON writes the flat form, values sorted by name. Numbers that JSON does not have are written as the strings
// "NaN", "Infinity" and "-Infinity".
func (e Event) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	kind, err := json.Marshal(e.Kind)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `{"time":%q,"kind":%s,"step":%d,"epoch":%s`, e.Time.UTC().Format(time.RFC3339Nano), kind, e.Step, number(e.Epoch))
	for _, name := range slices.Sorted(maps.Keys(e.Values)) {
		if slices.Contains(reserved, name) {
			return nil, fmt.Errorf("metrics: a value cannot be named %q", name)
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, ",%s:%s", key, number(e.Values[name]))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func number(x float64) string {
	switch {
	case math.IsNaN(x):
		return `"NaN"`
	case math.IsInf(x, 1):
		return `"Infinity"`
	case math.IsInf(x, -1):
		return `"-Infinity"`
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// UnmarshalJSON reads the flat form. Fields that are no numbers are ignored, so that other programs may add some.
func (e *Event) UnmarshalJSON(line []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return err
	}
	*e = Event{}
	for name, dst := range map[string]any{"time": &e.Time, "kind": &e.Kind, "step": &e.Step, "epoch": &e.Epoch} {
		if raw, ok := fields[name]; ok {
			if err := json.Unmarshal(raw, dst); err != nil {
				return fmt.Errorf("field %q: %w", name, err)
			}
		}
	}
	for name, raw := range fields {
		if slices.Contains(reserved, name) {
			continue
		}
		x, ok := parse(raw)
		if !ok {
			continue
		}
		if e.Values == nil {
			e.Values = map[string]float64{}
		}
		e.Values[name] = x
	}
	return nil
}

func parse(raw json.RawMessage) (float64, bool) {
	switch string(raw) {
	case `"NaN"`:
		return math.NaN(), true
	case `"Infinity"`:
		return math.Inf(1), true
	case `"-Infinity"`:
		return math.Inf(-1), true
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	return x, err == nil
}
