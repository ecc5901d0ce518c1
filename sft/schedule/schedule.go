// Package schedule holds the learning-rate schedules of transformers' get_scheduler as pure functions of the step.
//
// A schedule maps the optimiser step (from 0) to a factor on the base learning rate:
//
//	factor, err := schedule.New("cosine", schedule.Options{Warmup: 0.03, Total: 1000})
//	lr := base * factor(step)
//
// Being pure, a schedule has no state to save: a resumed run asks for the step at which it continues, and the list of
// rates does not depend on the number of ranks or on gradient accumulation.
package schedule

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Func gives the factor on the base learning rate that is in force for optimiser step step (from 0). Steps beyond
// Options.Total are allowed and continue the formula, as they do in transformers.
type Func func(step int) float64

// Options are the parameters of every schedule; each uses the ones it knows. The zero value of a field means the
// default of transformers, so that only Total has to be set.
type Options struct {
	// Warmup is transformers' warmup_steps: a number of optimiser steps, or a share of Total where it is below 1.
	Warmup float64
	// WarmupRatio is the older warmup_ratio, a share of Total. It is used where Warmup is 0.
	WarmupRatio float64
	// Total is the number of optimiser steps of the run.
	Total int

	// BaseLR is the learning rate that the factor is meant for. polynomial needs it, and MinLR does.
	BaseLR float64

	// NumCycles: waves of the cosine schedules; 0 means 0.5 (half a wave), and 1 for cosine_with_restarts.
	NumCycles float64
	// MinLR is the floor of the ..._min_lr schedules and of warmup_stable_decay, as a rate. Give it or MinLRRate.
	MinLR float64
	// MinLRRate is the same floor as a share of BaseLR. The ..._with_min_lr schedules need one of the two.
	MinLRRate *float64
	// WarmupLRRate is the share of BaseLR at which cosine_warmup_with_min_lr begins; nil begins at 1/warmup.
	WarmupLRRate *float64
	// LREnd is the last rate of polynomial; nil means 1e-7.
	LREnd *float64
	// Power is the exponent of polynomial; 0 means 1.
	Power float64
	// Timescale of inverse_sqrt in steps; 0 means the number of warm-up steps, or 10,000 where there is none.
	Timescale int
	// DecaySteps is the length of the last phase of warmup_stable_decay, which needs it.
	DecaySteps int
	// StableSteps is the length of its middle phase; 0 means whatever warm-up and decay leave of Total.
	StableSteps int
	// WarmupType and DecayType of warmup_stable_decay: linear, cosine or 1-sqrt; "" means linear and cosine.
	WarmupType, DecayType string
}

// builder makes a schedule from options and the number of warm-up steps.
type builder func(o Options, warmup int) (Func, error)

// builders lists the schedules in the order in which they are documented.
var builders = []struct {
	name  string
	build builder
}{
	{"linear", linear},
	{"cosine", cosine},
	{"cosine_with_restarts", cosineWithRestarts},
	{"polynomial", polynomial},
	{"constant", constant},
	{"constant_with_warmup", constantWithWarmup},
	{"inverse_sqrt", inverseSqrt},
	{"cosine_with_min_lr", cosineWithMinLR},
	{"cosine_warmup_with_min_lr", cosineWarmupWithMinLR},
	{"warmup_stable_decay", warmupStableDecay},
}

// Names returns the names that New takes: transformers' lr_scheduler_type.
func Names() []string {
	names := make([]string, len(builders))
	for i, b := range builders {
		names[i] = b.name
	}
	return names
}

// New returns the named schedule. It fails where the name is unknown or where the options cannot be used with it.
func New(name string, o Options) (Func, error) {
	i := slices.Index(Names(), name)
	if i < 0 {
		return nil, fmt.Errorf("schedule: unknown learning-rate schedule %q; use one of %s", name, strings.Join(Names(), ", "))
	}
	warmup, err := o.WarmupSteps()
	if err != nil {
		return nil, fmt.Errorf("schedule: %s: %w", name, err)
	}
	f, err := builders[i].build(o, warmup)
	if err != nil {
		return nil, fmt.Errorf("schedule: %s: %w", name, err)
	}
	return f, nil
}

// WarmupSteps resolves Warmup and WarmupRatio to a number of optimiser steps; shares are rounded up.
func (o Options) WarmupSteps() (int, error) {
	switch {
	case o.Total < 0:
		return 0, fmt.Errorf("the run has %d steps; Total must not be negative", o.Total)
	case !(o.Warmup >= 0) || math.IsInf(o.Warmup, 0):
		return 0, fmt.Errorf("warmup_steps is %v; want a number of steps, or a share below 1", o.Warmup)
	case !(o.WarmupRatio >= 0 && o.WarmupRatio <= 1):
		return 0, fmt.Errorf("warmup_ratio is %v; want a share from 0 to 1", o.WarmupRatio)
	case o.Warmup >= 1:
		return int(o.Warmup), nil
	case o.Warmup > 0:
		return int(math.Ceil(float64(o.Total) * o.Warmup)), nil
	}
	return int(math.Ceil(float64(o.Total) * o.WarmupRatio)), nil
}

// floor returns MinLR or MinLRRate as a share of the base rate; ok tells whether either was given.
func (o Options) floor() (rate float64, ok bool, err error) {
	switch {
	case o.MinLR != 0 && o.MinLRRate != nil:
		return 0, false, fmt.Errorf("min_lr and min_lr_rate are both set; give one of them")
	case o.MinLRRate != nil:
		return *o.MinLRRate, true, nil
	case o.MinLR != 0 && !(o.BaseLR > 0):
		return 0, false, fmt.Errorf("min_lr needs a base learning rate above 0, which is %v", o.BaseLR)
	case o.MinLR != 0:
		return o.MinLR / o.BaseLR, true, nil
	}
	return 0, false, nil
}

// orDefault returns x, or def where x is zero.
func orDefault[T comparable](x, def T) T {
	var zero T
	if x == zero {
		return def
	}
	return x
}
