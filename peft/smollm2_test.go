package peft_test

import (
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// smolSteps is how many of the twenty golden steps are run: each costs seconds of CPU time. With
// GOFSDP_LONG=1 all are.
var smolSteps = 5

func init() {
	if os.Getenv("GOFSDP_LONG") == "1" {
		smolSteps = 20
	}
}

// cpuTime is what the process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestGoldenSmolLM2Training(t *testing.T) {
	var runs struct {
		Runs map[string]struct {
			Loss     []float64 `json:"loss"`
			GradNorm []float64 `json:"grad_norm"`
		} `json:"runs"`
	}
	llamatest.JSON(t, &runs, "smollm2_train", "runs.json")
	batches := llamatest.Open(t, "smollm2_train", "batches.safetensors").Get("input_ids")
	start := llamatest.Open(t, "smollm2_train", "lora_A_init.safetensors")
	dir := llamatest.SmolLM2(t)
	for _, name := range []string{"fp32", "nf4"} {
		t.Run(name, func(t *testing.T) {
			want := runs.Runs["single_"+name]
			var adapter *peft.Adapter
			m := llamatest.Load(t, dir, llama.Options{DType: torch.Float32}, func(m *llama.Model) {
				if name == "nf4" {
					_, err := quant.Quantize(m, quant.Config{DoubleQuant: true}, nil)
					require.NoError(t, err)
				}
				var err error
				adapter, err = peft.Apply(m, peft.Config{R: 16, LoRAAlpha: 16, TargetModules: peft.AllLinear}, peft.Options{})
				require.NoError(t, err)
			})
			require.Len(t, adapter.Layers, 210)
			for _, l := range adapter.Layers {
				l.A.Tensor().VariableData().Copy(start.Get("base_model.model." + l.Name + ".lora_A.weight").In(nil))
			}
			opt := llamatest.NewAdamW(m, llamatest.AdamW{LR: 1e-4, WeightDecay: 0.01})
			torch.ResetPeak()
			loss, norm := 0.0, 0.0
			before := cpuTime(t)
			for i := range smolSteps {
				got := smolStep(m, batches, i)
				n := opt.Step()
				require.InDelta(t, want.Loss[i], got, 5e-5, "loss of step %d", i)
				require.InEpsilon(t, want.GradNorm[i], n, 2e-4, "gradient norm of step %d", i)
				loss, norm = max(loss, math.Abs(got-want.Loss[i])), max(norm, math.Abs(n/want.GradNorm[i]-1))
			}
			t.Logf("%d steps: losses differ by at most %.2g, gradient norms by %.2g of their size; %.1f s of CPU a step, at most %d MiB of tensors",
				smolSteps, loss, norm, (cpuTime(t)-before).Seconds()/float64(smolSteps), torch.MemoryStats().PeakBytes>>20)
			if smolSteps == 20 {
				params := map[string]*torch.Tensor{}
				for _, l := range adapter.Layers {
					params["base_model.model."+l.Name+".lora_A.weight"] = l.A.Tensor()
					params["base_model.model."+l.Name+".lora_B.weight"] = l.B.Tensor()
				}
				llamatest.RequireSmolAdapter(t, name, func(name string) *torch.Tensor { return params[name] })
			}
		})
	}
}

func smolStep(m *llama.Model, batches *torch.Tensor, i int) float64 {
	s := torch.NewScope(nil)
	defer s.Close()
	ids := batches.In(s).Select(0, int64(i))
	out := nn.Run(m, &nn.Call{Scope: s, Training: true}, llama.Input{IDs: ids, Labels: ids, LossScale: 1.0 / 510})
	out.Loss.Backward()
	return out.Loss.Item()
}
