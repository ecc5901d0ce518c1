package schedule

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Apply sets the options that transformers calls lr_scheduler_kwargs, from decoded JSON or YAML. Unknown names and
// values of another type are errors.
func (o *Options) Apply(kwargs map[string]any) error {
	setters := map[string]func(v any) error{
		"num_cycles":       number(func(x float64) { o.NumCycles = x }),
		"min_lr":           number(func(x float64) { o.MinLR = x }),
		"min_lr_rate":      number(func(x float64) { o.MinLRRate = &x }),
		"min_lr_ratio":     number(func(x float64) { o.MinLRRate = &x }),
		"warmup_lr_rate":   number(func(x float64) { o.WarmupLRRate = &x }),
		"lr_end":           number(func(x float64) { o.LREnd = &x }),
		"power":            number(func(x float64) { o.Power = x }),
		"timescale":        whole(&o.Timescale),
		"num_decay_steps":  whole(&o.DecaySteps),
		"num_stable_steps": whole(&o.StableSteps),
		"warmup_type":      text(&o.WarmupType),
		"decay_type":       text(&o.DecayType),
	}
	names := make([]string, 0, len(kwargs))
	for name := range kwargs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		set, ok := setters[name]
		if !ok {
			known := make([]string, 0, len(setters))
			for k := range setters {
				known = append(known, k)
			}
			slices.Sort(known)
			return fmt.Errorf("schedule: unknown option %q; use one of %s", name, strings.Join(known, ", "))
		}
		if err := set(kwargs[name]); err != nil {
			return fmt.Errorf("schedule: option %s: %w", name, err)
		}
	}
	return nil
}

// number makes a setter that takes any numeric type a decoder may produce.
func number(set func(float64)) func(any) error {
	return func(v any) error {
		x, err := toFloat(v)
		if err == nil {
			set(x)
		}
		return err
	}
}

// whole makes a setter that takes whole numbers only.
func whole(dst *int) func(any) error {
	return func(v any) error {
		x, err := toFloat(v)
		if err != nil {
			return err
		}
		if x != math.Trunc(x) || math.Abs(x) > 1<<53 {
			return fmt.Errorf("got %v, want a whole number", v)
		}
		*dst = int(x)
		return nil
	}
}

// text makes a setter that takes strings.
func text(dst *string) func(any) error {
	return func(v any) error {
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("got %v (%T), want a string", v, v)
		}
		*dst = s
		return nil
	}
}

func toFloat(v any) (float64, error) {
	switch x := v.(type) {
	case float64:
		return x, nil
	case int:
		return float64(x), nil
	case int64:
		return float64(x), nil
	case uint64:
		return float64(x), nil
	}
	return 0, fmt.Errorf("got %v (%T), want a number", v, v)
}
