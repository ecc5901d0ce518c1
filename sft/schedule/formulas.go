package schedule

import (
	"fmt"
	"math"
)

// ratio is a/b with b at least 1, as every formula of transformers has it.
func ratio(a, b int) float64 { return float64(a) / float64(max(1, b)) }

// afterWarmup rises linearly from 0 to 1 over the warm-up and hands the later steps to f.
func afterWarmup(warmup int, f Func) Func {
	return func(step int) float64 {
		if step < warmup {
			return ratio(step, warmup)
		}
		return f(step)
	}
}

// wave is (1 + cos(2·pi·cycles·progress)) / 2.
func wave(cycles, progress float64) float64 {
	return 0.5 * (1 + math.Cos(math.Pi*cycles*2*progress))
}

func linear(o Options, warmup int) (Func, error) {
	return afterWarmup(warmup, func(step int) float64 {
		return max(0, ratio(o.Total-step, o.Total-warmup))
	}), nil
}

func cosine(o Options, warmup int) (Func, error) {
	cycles := orDefault(o.NumCycles, 0.5)
	return afterWarmup(warmup, func(step int) float64 {
		return max(0, wave(cycles, ratio(step-warmup, o.Total-warmup)))
	}), nil
}

func cosineWithRestarts(o Options, warmup int) (Func, error) {
	cycles := orDefault(o.NumCycles, 1)
	if cycles != math.Trunc(cycles) || cycles < 1 {
		return nil, fmt.Errorf("num_cycles is %v; want a whole number of at least 1", cycles)
	}
	return afterWarmup(warmup, func(step int) float64 {
		progress := ratio(step-warmup, o.Total-warmup)
		if progress >= 1 {
			return 0
		}
		return max(0, 0.5*(1+math.Cos(math.Pi*math.Mod(cycles*progress, 1))))
	}), nil
}

func polynomial(o Options, warmup int) (Func, error) {
	end := 1e-7
	if o.LREnd != nil {
		end = *o.LREnd
	}
	if !(o.BaseLR > end) {
		return nil, fmt.Errorf("the base learning rate %v must be above lr_end %v", o.BaseLR, end)
	}
	power := orDefault(o.Power, 1)
	return afterWarmup(warmup, func(step int) float64 {
		if step > o.Total {
			return end / o.BaseLR
		}
		remaining := 1 - ratio(step-warmup, o.Total-warmup)
		return ((o.BaseLR-end)*math.Pow(remaining, power) + end) / o.BaseLR
	}), nil
}

func constant(Options, int) (Func, error) {
	return func(int) float64 { return 1 }, nil
}

func constantWithWarmup(_ Options, warmup int) (Func, error) {
	return afterWarmup(warmup, func(int) float64 { return 1 }), nil
}

func inverseSqrt(o Options, warmup int) (Func, error) {
	if o.Timescale < 0 {
		return nil, fmt.Errorf("timescale is %d; want a number of steps", o.Timescale)
	}
	timescale := orDefault(o.Timescale, orDefault(warmup, 10_000))
	shift := timescale - warmup
	return afterWarmup(warmup, func(step int) float64 {
		return 1 / math.Sqrt(float64(step+shift)/float64(timescale))
	}), nil
}

func cosineWithMinLR(o Options, warmup int) (Func, error) {
	floor, ok, err := o.floor()
	if err == nil && !ok {
		err = fmt.Errorf("set min_lr or min_lr_rate")
	}
	if err != nil {
		return nil, err
	}
	cycles := orDefault(o.NumCycles, 0.5)
	return afterWarmup(warmup, func(step int) float64 {
		return max(0, wave(cycles, ratio(step-warmup, o.Total-warmup))*(1-floor)+floor)
	}), nil
}

// cosineWarmupWithMinLR counts steps from 1, so its first step already has a rate above 0.
func cosineWarmupWithMinLR(o Options, warmup int) (Func, error) {
	floor, ok, err := o.floor()
	if err == nil && !ok {
		err = fmt.Errorf("set min_lr or min_lr_rate")
	}
	if err != nil {
		return nil, err
	}
	cycles := orDefault(o.NumCycles, 0.5)
	return func(step int) float64 {
		switch {
		case step >= warmup:
			return max(0, wave(cycles, ratio(step-warmup+1, o.Total-warmup))*(1-floor)+floor)
		case o.WarmupLRRate == nil:
			return ratio(step+1, warmup)
		}
		start := *o.WarmupLRRate
		return start + (1-start)*ratio(step, warmup-1)
	}, nil
}

// warmupStableDecay rises from the floor to 1, stays, and falls back to the floor.
func warmupStableDecay(o Options, warmup int) (Func, error) {
	floor, _, err := o.floor()
	if err != nil {
		return nil, err
	}
	if o.DecaySteps <= 0 {
		return nil, fmt.Errorf("num_decay_steps is %d; set the length of the decay in steps", o.DecaySteps)
	}
	stable := o.StableSteps
	if stable == 0 {
		stable = o.Total - warmup - o.DecaySteps
	}
	if stable < 0 {
		return nil, fmt.Errorf("%d warm-up and %d decay steps do not fit into %d steps", warmup, o.DecaySteps, o.Total)
	}
	rise, err := fall("warmup_type", orDefault(o.WarmupType, "linear"), 0.5)
	if err != nil {
		return nil, err
	}
	decay, err := fall("decay_type", orDefault(o.DecayType, "cosine"), orDefault(o.NumCycles, 0.5))
	if err != nil {
		return nil, err
	}
	scale := func(x float64) float64 { return max(0, x*(1-floor)+floor) }
	return func(step int) float64 {
		switch decayAt := warmup + stable; {
		case step < warmup:
			return scale(rise(1 - ratio(step, warmup))) // a fall read backwards
		case step < decayAt:
			return 1
		case step < decayAt+o.DecaySteps:
			return scale(decay(ratio(step-decayAt, o.DecaySteps)))
		}
		return floor
	}, nil
}

// fall returns a curve from 1 at progress 0 to 0 at progress 1. option names the setting in an error.
func fall(option, name string, cycles float64) (func(progress float64) float64, error) {
	switch name {
	case "linear":
		return func(p float64) float64 { return 1 - p }, nil
	case "cosine":
		return func(p float64) float64 { return wave(cycles, p) }, nil
	case "1-sqrt":
		return func(p float64) float64 { return 1 - math.Sqrt(p) }, nil
	}
	return nil, fmt.Errorf("unknown %s %q; use linear, cosine or 1-sqrt", option, name)
}
