package schedule_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/sft/schedule"
)

// TestGoldenSchedules compares every rate with the ones transformers' get_scheduler put into an optimiser.
func TestGoldenSchedules(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/goldens/lr/schedules.json")
	require.NoError(t, err)
	var golden struct {
		Schedules []struct {
			Name   string         `json:"name"`
			BaseLR float64        `json:"base_lr"`
			Total  int            `json:"total_steps"`
			Warmup int            `json:"warmup_steps"`
			Kwargs map[string]any `json:"kwargs"`
			Rates  []float64      `json:"lr_used_at_step"`
		} `json:"schedules"`
	}
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.NotEmpty(t, golden.Schedules)
	for _, g := range golden.Schedules {
		t.Run(fmt.Sprintf("%s/%d/%d", g.Name, g.Total, g.Warmup), func(t *testing.T) {
			o := schedule.Options{Warmup: float64(g.Warmup), Total: g.Total, BaseLR: g.BaseLR}
			require.NoError(t, o.Apply(g.Kwargs))
			f, err := schedule.New(g.Name, o)
			require.NoError(t, err)
			require.NotEmpty(t, g.Rates)
			for step, want := range g.Rates {
				// Relative to the base rate: the tails of a cosine are differences of numbers near 1.
				require.InDelta(t, want/g.BaseLR, f(step), 1e-12, "step %d", step)
			}
		})
	}
}

func TestWarmupAsStepsShareAndRatio(t *testing.T) {
	for _, c := range []struct {
		o    schedule.Options
		want int
	}{
		{schedule.Options{Total: 10}, 0},
		{schedule.Options{Total: 10, Warmup: 2}, 2},
		{schedule.Options{Total: 10, Warmup: 0.2}, 2},
		{schedule.Options{Total: 10, WarmupRatio: 0.2}, 2},
		{schedule.Options{Total: 101, WarmupRatio: 0.03}, 4}, // rounded up
		{schedule.Options{Total: 10, Warmup: 3, WarmupRatio: 0.5}, 3},
	} {
		got, err := c.o.WarmupSteps()
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%+v", c.o)
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	rate := 0.1
	for _, c := range []struct {
		name string
		o    schedule.Options
		want string
	}{
		{"cosin", schedule.Options{Total: 1}, `unknown learning-rate schedule "cosin"; use one of linear, cosine`},
		{"linear", schedule.Options{Total: -1}, "Total must not be negative"},
		{"linear", schedule.Options{Total: 1, Warmup: -3}, "warmup_steps is -3"},
		{"linear", schedule.Options{Total: 1, Warmup: math.NaN()}, "warmup_steps is NaN"},
		{"linear", schedule.Options{Total: 1, WarmupRatio: 1.5}, "warmup_ratio is 1.5"},
		{"polynomial", schedule.Options{Total: 1}, "base learning rate 0 must be above"},
		{"cosine_with_min_lr", schedule.Options{Total: 1}, "set min_lr or min_lr_rate"},
		{"cosine_with_min_lr", schedule.Options{Total: 1, MinLR: 1, MinLRRate: &rate}, "both set"},
		{"cosine_with_min_lr", schedule.Options{Total: 1, MinLR: 1}, "needs a base learning rate"},
		{"cosine_with_restarts", schedule.Options{Total: 1, NumCycles: 1.5}, "num_cycles is 1.5"},
		{"warmup_stable_decay", schedule.Options{Total: 10}, "num_decay_steps is 0"},
		{"warmup_stable_decay", schedule.Options{Total: 10, Warmup: 6, DecaySteps: 6}, "do not fit into 10 steps"},
		{"warmup_stable_decay", schedule.Options{Total: 10, DecaySteps: 6, DecayType: "steep"}, `decay_type "steep"`},
	} {
		_, err := schedule.New(c.name, c.o)
		require.ErrorContains(t, err, c.want)
	}
	var o schedule.Options
	require.ErrorContains(t, o.Apply(map[string]any{"cycles": 1}), `unknown option "cycles"; use one of decay_type`)
	require.ErrorContains(t, o.Apply(map[string]any{"num_cycles": "two"}), "want a number")
	require.ErrorContains(t, o.Apply(map[string]any{"timescale": 1.5}), "want a whole number")
	require.ErrorContains(t, o.Apply(map[string]any{"decay_type": 1}), "want a string")
}

func TestWarmupStableDecayShapes(t *testing.T) {
	rate := 0.2
	f, err := schedule.New("warmup_stable_decay", schedule.Options{
		Warmup: 4, Total: 20, DecaySteps: 4, MinLRRate: &rate, WarmupType: "1-sqrt", DecayType: "1-sqrt",
	})
	require.NoError(t, err)
	require.InDelta(t, 0.2, f(0), 1e-15)
	require.InDelta(t, (1-math.Sqrt(0.75))*0.8+0.2, f(1), 1e-15)
	require.InDelta(t, 1, f(10), 0)
	require.InDelta(t, 0.5*0.8+0.2, f(17), 1e-15)
	require.InDelta(t, 0.2, f(20), 0)
}

func TestCosineWarmupWithMinLRStartsAboveZero(t *testing.T) {
	rate, start := 0.1, 0.5
	f, err := schedule.New("cosine_warmup_with_min_lr", schedule.Options{Warmup: 4, Total: 20, MinLRRate: &rate})
	require.NoError(t, err)
	require.InDelta(t, 0.25, f(0), 0)
	require.InDelta(t, 1, f(3), 0)
	require.InDelta(t, 0.1, f(19), 1e-15)

	f, err = schedule.New("cosine_warmup_with_min_lr",
		schedule.Options{Warmup: 5, Total: 20, MinLRRate: &rate, WarmupLRRate: &start})
	require.NoError(t, err)
	require.InDelta(t, 0.5, f(0), 0)
	require.InDelta(t, 0.625, f(1), 1e-15)
	require.InDelta(t, 1, f(4), 1e-15)
}

// Every schedule stays between 0 and 1 within the run and is the same function however often it is asked.
func TestFactorsStayWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0, 1).Draw(t, "min_lr_rate")
		total := rapid.IntRange(1, 500).Draw(t, "total")
		decay := rapid.IntRange(1, total).Draw(t, "decay")
		o := schedule.Options{
			Total: total, Warmup: float64(rapid.IntRange(0, total-decay).Draw(t, "warmup")),
			BaseLR: 1e-3, MinLRRate: &rate, DecaySteps: decay,
		}
		name := rapid.SampledFrom(schedule.Names()).Draw(t, "name")
		f, err := schedule.New(name, o)
		require.NoError(t, err)
		step := rapid.IntRange(0, total).Draw(t, "step")
		require.GreaterOrEqual(t, f(step), 0.0)
		require.LessOrEqual(t, f(step), 1+1e-12)
		require.Equal(t, f(step), f(step))
	})
}

func ExampleNew() {
	f, err := schedule.New("linear", schedule.Options{Warmup: 2, Total: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, step := range []int{0, 1, 2, 6, 10} {
		fmt.Print(f(step), " ")
	}
	// Output: 0 0.5 1 0.5 0
}
