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
	"github.com/gofsdp/gofsdp/torch/nn"
)

// quickSteps of the reference's 20 are made in the quick tests.
const quickSteps = 5

type referenceRun struct {
	Loss     []float64 `json:"loss"`
	GradNorm []float64 `json:"grad_norm"`
}

// TestGoldenFixedStepsAtTwoRanks makes the reference's steps on two ranks and compares losses, gradient norms and, after
// all 20 steps, the stored adapter with those of PyTorch FSDP2, PEFT and bitsandbytes; and with the run of one process.
func TestGoldenFixedStepsAtTwoRanks(t *testing.T) {
	var golden struct {
		Runs map[string]referenceRun `json:"runs"`
	}
	llamatest.JSON(t, &golden, "smollm2_train", "runs.json")
	folder := llamatest.SmolLM2(t)
	torch.SetNumThreads(1)
	steps := quickSteps
	if os.Getenv("GOFSDP_LONG") != "" {
		steps = 20
	}
	for _, v := range []struct{ quant, name string }{{"nf4", "nf4"}, {"none", "fp32"}} {
		t.Run(v.name, func(t *testing.T) {
			c := &fixedCmd{
				Model: folder, Batches: llamatest.Golden("smollm2_train", "batches.safetensors"),
				LoRAInit: llamatest.Golden("smollm2_train", "lora_A_init.safetensors"), Quant: v.quant,
			}
			var loss, norm []float64
			adapter := filepath.Join(t.TempDir(), "adapter")
			ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
				batches, err := fixedBatches(c.Batches, g)
				if err != nil {
					return err
				}
				trainer, built, err := fixedTrainer(ctx, c, g)
				if err != nil {
					return err
				}
				for i, b := range batches[:steps] {
					r, err := trainer.Step(ctx, []data.Batch{b}, false)
					if err != nil {
						return fmt.Errorf("step %d: %w", i, err)
					}
					if g.Rank() == 0 {
						loss, norm = append(loss, r.Loss), append(norm, r.GradNorm)
					}
				}
				return built.Adapter.Save(ctx, adapter, peft.SaveOptions{
					Full: func(ctx context.Context, _ string, p *nn.Param) (*torch.Tensor, error) {
						return built.Sharded.FullParam(ctx, p)
					},
					Silent: g.Rank() != 0,
				})
			})
			fsdp2, single := golden.Runs["fsdp2_"+v.name], golden.Runs["single_"+v.name]
			worstLoss, worstNorm := 0.0, 0.0
			for i := range loss {
				worstLoss = max(worstLoss, math.Abs(loss[i]-fsdp2.Loss[i]), math.Abs(loss[i]-single.Loss[i]))
				worstNorm = max(worstNorm, math.Abs(norm[i]/fsdp2.GradNorm[i]-1))
			}
			t.Logf("%d steps: losses differ by at most %.1e, gradient norms by %.1e (relative)", steps, worstLoss, worstNorm)
			require.Less(t, worstLoss, 5e-5)
			require.Less(t, worstNorm, 2e-4)
			if steps == 20 {
				want := llamatest.Open(t, "smollm2_train", "adapter_after20_fsdp2_"+v.name+".safetensors")
				start := llamatest.Open(t, "smollm2_train", "lora_A_init.safetensors")
				got := llamatest.OpenFile(t, filepath.Join(adapter, peft.WeightsName))
				share := 0.0
				for _, name := range want.Names() {
					after := want.Get(name)
					before := after.ZerosLike() // B starts from zero
					if start.Has(name) {
						before = start.Get(name)
					}
					// Adam divides by the root of the second moment: single elements whose gradients are near zero take
					// steps of either sign. So the measure is the mean distance, as a part of how far the tensor moved.
					diff, moved := llamatest.MeanDiff(got.Get(name), after), llamatest.MeanDiff(after, before)
					require.LessOrEqual(t, diff, 0.005*moved, name)
					share = max(share, diff/moved)
				}
				t.Logf("adapter after 20 steps: differs in the mean by at most %.2g of how far it moved", share)
			}
		})
	}
}
