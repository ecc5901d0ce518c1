package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/torch"
)

// quickSteps of the reference's 20 are made in the quick tests.
const quickSteps = 5

type referenceRun struct {
	Loss     []float64 `json:"loss"`
	GradNorm []float64 `json:"grad_norm"`
}

// TestGoldenFixedSteps makes the reference's steps at one rank and at two, and compares losses, gradient norms and, after
// all 20 steps, the stored adapter with those of PyTorch, PEFT and bitsandbytes; and two ranks with one.
func TestGoldenFixedSteps(t *testing.T) {
	var golden struct {
		Runs map[string]referenceRun `json:"runs"`
	}
	llamatest.JSON(t, &golden, "smollm2_train", "runs.json")
	folder := llamatest.SmolLM2(t)
	torch.SetNumThreads(1)
	for _, v := range []struct{ quant, name string }{{"nf4", "nf4"}, {"none", "fp32"}} {
		t.Run(v.name, func(t *testing.T) {
			c := &fixedCmd{
				Model: folder, Batches: llamatest.Golden("smollm2_train", "batches.safetensors"),
				LoRAInit: llamatest.Golden("smollm2_train", "lora_A_init.safetensors"), Quant: v.quant, Steps: quickSteps,
			}
			if os.Getenv("GOFSDP_LONG") == "1" {
				c.Steps = 20
			}
			single := fixedRun(t, c, 1, golden.Runs["single_"+v.name], v.name)
			double := fixedRun(t, c, 2, golden.Runs["fsdp2_"+v.name], v.name)
			for i := range single.Loss {
				require.InDelta(t, single.Loss[i], double.Loss[i], 1e-5, "two ranks and one, loss of step %d", i)
				require.InEpsilon(t, single.GradNorm[i], double.GradNorm[i], 1e-5, "two ranks and one, norm of step %d", i)
			}
		})
	}
}

// fixedRun makes the steps at a number of ranks and compares them with the reference's.
func fixedRun(t *testing.T, c *fixedCmd, ranks int, want referenceRun, precision string) (got referenceRun) {
	adapter := filepath.Join(t.TempDir(), "adapter")
	ranktest.Run(t, ranks, func(ctx context.Context, g dist.Group) error {
		batches, err := fixedBatches(c.Batches, g)
		if err != nil {
			return err
		}
		trainer, built, err := fixedTrainer(ctx, c, g)
		if err != nil {
			return err
		}
		for i, b := range batches[:c.Steps] {
			r, err := trainer.Step(ctx, []data.Batch{b}, false)
			if err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			if g.Rank() == 0 {
				got.Loss, got.GradNorm = append(got.Loss, r.Loss), append(got.GradNorm, r.GradNorm)
			}
		}
		return saveFixedAdapter(ctx, built, adapter, g)
	})
	loss, norm := 0.0, 0.0
	for i := range got.Loss {
		loss = max(loss, math.Abs(got.Loss[i]-want.Loss[i]))
		norm = max(norm, math.Abs(got.GradNorm[i]/want.GradNorm[i]-1))
	}
	t.Logf("%d ranks, %d steps: losses differ by at most %.1e, gradient norms by %.1e (relative)", ranks, c.Steps, loss, norm)
	require.Len(t, got.Loss, c.Steps)
	require.Less(t, loss, 5e-5)
	require.Less(t, norm, 2e-4)
	if c.Steps == 20 {
		llamatest.RequireSmolAdapter(t, precision, llamatest.OpenFile(t, filepath.Join(adapter, peft.WeightsName)).Get)
	}
	return got
}
