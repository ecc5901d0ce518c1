package sft_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/sft"
	"github.com/gofsdp/gofsdp/sft/metrics"
	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/gofsdp/gofsdp/torch"
)

const chatML = `{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// tinyModel writes a model folder with random weights and a small real tokenizer.
func tinyModel(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	var small struct{ Tokenizer json.RawMessage }
	b, err := os.ReadFile(filepath.Join("..", "testdata", "tokenizer", "small", "gpt2.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &small))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	write("tokenizer.json", string(small.Tokenizer))
	write("tokenizer_config.json", `{"tokenizer_class":"PreTrainedTokenizerFast"}`)
	write("chat_template.jinja", chatML)
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	write("config.json", fmt.Sprintf(`{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":32,
		"intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"vocab_size":%d,
		"max_position_embeddings":96,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true,"hidden_act":"silu",
		"torch_dtype":"float32"}`, tok.VocabSize()))
	cfg, err := modelio.ReadConfig(dir)
	require.NoError(t, err)
	shapes := cfg.TensorShapes()
	var specs []safetensors.Spec
	for _, s := range shapes {
		specs = append(specs, safetensors.Spec{Name: s.Name, DType: "F32", Shape: s.Shape})
	}
	w, err := modelio.CreateWeights(dir, specs, 1<<30)
	require.NoError(t, err)
	g := torch.NewGenerator(5)
	for _, s := range specs {
		x := torch.Randn(g, torch.Float32, s.Shape...).MulScalarInPlace(0.15)
		if strings.Contains(s.Name, "norm") {
			x.Fill(1)
		}
		require.NoError(t, w.Write(s.Name, x.Bytes()))
	}
	require.NoError(t, w.Commit())
	return dir
}

// tinyData writes conversations whose answers follow from the questions.
func tinyData(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	words := []string{"red", "green", "blue", "seven", "house", "water", "tree", "stone"}
	file := func(name string, from, to int) {
		var b bytes.Buffer
		for i := from; i < to; i++ {
			w := words[i%len(words)]
			fmt.Fprintf(&b, `{"messages":[{"role":"user","content":"Say %s %d."},{"role":"assistant","content":"I say %s, %s."}]}`+"\n", w, i, w, strings.Repeat(w+" ", i%5))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o666))
	}
	file("train.jsonl", 0, 42)
	file("eval.jsonl", 42, 49)
	return dir
}

func config(model, data, out string) sft.Config {
	c := sft.DefaultConfig()
	c.ModelNameOrPath, c.DatasetName, c.OutputDir = model, data, out
	c.MaxLength, c.TrainBatchSize, c.EvalBatchSize, c.AccumulateSteps = 64, 2, 2, 2
	c.MaxSteps, c.LearningRate, c.WarmupSteps, c.DDPTimeout = 8, 5e-3, 2, 60
	c.UseLoRA, c.LoRAR, c.LoRADropout = true, 4, 0
	c.Use4Bit, c.NestedQuant = true, true
	c.EvalStrategy, c.EvalSteps, c.EvalOnStart, c.SaveSteps = "steps", 100, true, 4
	return c
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// ranks runs sft.Run on size ranks of this process and returns rank 0's result and text, and every rank's error.
func ranks(t testing.TB, size int, config func(rank int) sft.Config, ctx func(rank int) context.Context) (*sft.Result, string, []error) {
	t.Helper()
	return ranksWith(t, size, config, ctx, func(*sft.RunOptions) {})
}

// ranksWith is ranks with changed options.
func ranksWith(t testing.TB, size int, config func(rank int) sft.Config, ctx func(rank int) context.Context, change func(*sft.RunOptions)) (*sft.Result, string, []error) {
	t.Helper()
	t.Setenv("OMP_NUM_THREADS", "1")
	port := freePort(t)
	var out bytes.Buffer
	results, errs := make([]*sft.Result, size), make([]error, size)
	var wg sync.WaitGroup
	for rank := range size {
		wg.Go(func() {
			o := sft.RunOptions{Env: dist.Env{Rank: rank, WorldSize: size, LocalWorldSize: size, MasterAddr: "127.0.0.1", MasterPort: port}}
			if rank == 0 {
				o.Out = &out
			}
			change(&o)
			c := t.Context()
			if ctx != nil {
				c = ctx(rank)
			}
			results[rank], errs[rank] = sft.Run(c, config(rank), o)
		})
	}
	wg.Wait()
	return results[0], out.String(), errs
}

func run(t testing.TB, size int, c sft.Config) (*sft.Result, string) {
	t.Helper()
	r, out, errs := ranks(t, size, func(int) sft.Config { return c }, nil)
	require.NoError(t, errors.Join(errs...))
	return r, out
}

func losses(t testing.TB, out string) (loss, norm []float64) {
	events, err := metrics.ReadFile(filepath.Join(out, "metrics.jsonl"))
	require.NoError(t, err)
	for _, e := range events {
		if e.Kind == metrics.Train {
			loss, norm = append(loss, e.Values[metrics.Loss]), append(norm, e.Values[metrics.GradNorm])
		}
	}
	return loss, norm
}

func adapterBytes(t testing.TB, out string) []byte {
	b, err := os.ReadFile(filepath.Join(out, "adapter", peft.WeightsName))
	require.NoError(t, err)
	return b
}

func TestRunLeavesAnAdapterAndEverythingElse(t *testing.T) {
	model, data, out := tinyModel(t), tinyData(t), filepath.Join(t.TempDir(), "out")
	c := config(model, data, out)
	c.MaxSteps, c.TensorBoard = 30, true
	r, text := run(t, 2, c)
	require.Equal(t, 30, r.Steps)
	require.False(t, r.Stopped)
	require.Less(t, *r.EvalAfter, *r.EvalBefore-0.5, text)
	for _, f := range []string{
		"metrics.jsonl", "learning_curve.png", "summary.json", "adapter/adapter_config.json",
		"adapter/adapter_model.safetensors", "checkpoint-28/checkpoint.json", "checkpoint-30/checkpoint.json",
	} {
		require.FileExists(t, filepath.Join(out, f))
	}
	require.Contains(t, text, "eval loss")
	require.Contains(t, text, "train step 30/30")
	var summary sft.Result
	b, err := os.ReadFile(filepath.Join(out, "summary.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &summary))
	require.Equal(t, *r, summary)
	require.Len(t, summary.PeakRSSBytes, 2)

	// The adapter fits the model again.
	cfg, err := modelio.ReadConfig(model)
	require.NoError(t, err)
	m, err := llama.New(cfg, llama.Options{})
	require.NoError(t, err)
	_, err = peft.LoadAdapter(r.Adapter, m, peft.Options{})
	require.NoError(t, err)
}

func TestParityRanksAndMicroBatches(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	var want []float64
	for _, v := range []struct{ ranks, batch, accumulate int }{{1, 4, 1}, {1, 2, 2}, {2, 2, 1}, {2, 1, 2}, {4, 1, 1}} {
		out := t.TempDir()
		c := config(model, data, out)
		c.TrainBatchSize, c.AccumulateSteps, c.EvalStrategy, c.EvalOnStart, c.SaveStrategy = v.batch, v.accumulate, "no", false, "no"
		run(t, v.ranks, c)
		loss, _ := losses(t, out)
		if want == nil {
			want = loss
			continue
		}
		if v.accumulate > 1 && v.ranks == 2 { // other examples meet in a step, so only the first loss is the same kind
			continue
		}
		for i := range want {
			require.InDelta(t, want[i], loss[i], 1e-5, "%+v step %d", v, i+1)
		}
	}
}

func TestResumeIsBitForBit(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	for _, size := range []int{1, 2} {
		for _, dropout := range []float64{0, 0.2} {
			whole, parts := t.TempDir(), t.TempDir()
			c := config(model, data, whole)
			c.LoRADropout = dropout
			run(t, size, c)
			c.OutputDir = parts
			run(t, size, c)
			require.NoError(t, os.RemoveAll(filepath.Join(parts, "checkpoint-8")))
			require.NoError(t, os.RemoveAll(filepath.Join(parts, "adapter")))
			c.Resume = "true"
			_, text := run(t, size, c)
			require.Contains(t, text, "resumed from")
			require.Equal(t, adapterBytes(t, whole), adapterBytes(t, parts), "%d ranks, dropout %v", size, dropout)
			wantLoss, wantNorm := losses(t, whole)
			loss, norm := losses(t, parts)
			require.Equal(t, wantLoss[4:], loss[len(loss)-4:])
			require.Equal(t, wantNorm[4:], norm[len(norm)-4:])
		}
	}
}

func TestResumeAtAnotherWorldSize(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	a, b := t.TempDir(), t.TempDir()
	c := config(model, data, a)
	c.TrainBatchSize, c.AccumulateSteps = 1, 1
	run(t, 4, c)
	want, _ := losses(t, a)
	c.OutputDir, c.TrainBatchSize = b, 2
	c.MaxSteps = 8
	run(t, 2, c)
	require.NoError(t, os.RemoveAll(filepath.Join(b, "checkpoint-8")))
	c.Resume, c.TrainBatchSize = filepath.Join(b, "checkpoint-4"), 1
	run(t, 4, c)
	got, _ := losses(t, b)
	for i := range 4 {
		require.InDelta(t, want[4+i], got[len(got)-4+i], 1e-5)
	}
}

func TestResumeRefusesOtherSettings(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	c := config(model, data, t.TempDir())
	run(t, 1, c)
	c.Resume = filepath.Join(c.OutputDir, "checkpoint-4")
	for want, change := range map[string]func(c *sft.Config){
		"seed: 7 here":                       func(c *sft.Config) { c.Seed = 7 },
		"rows of training data: 3 here":      func(c *sft.Config) { c.MaxTrainSamples = 3 },
		"lora_alpha: 99 here":                func(c *sft.Config) { c.LoRAAlpha = 99 },
		"use_rslora: true here, false in":    func(c *sft.Config) { c.UseRSLoRA = true },
		"use_4bit_quantization: false here":  func(c *sft.Config) { c.Use4Bit = false },
		"use_nested_quant: false here":       func(c *sft.Config) { c.NestedQuant = false },
		"mixed_precision: bf16 here, no in":  func(c *sft.Config) { c.BF16 = true },
		"group_by_length: true here":         func(c *sft.Config) { c.GroupByLength = true },
		"use_peft_lora: false here, true in": func(c *sft.Config) { c.UseLoRA, c.Use4Bit = false, false },
	} {
		other := c
		change(&other)
		_, _, errs := ranks(t, 1, func(int) sft.Config { return other }, nil)
		require.ErrorContains(t, errs[0], want, want)
		require.ErrorContains(t, errs[0], "checkpoint-4")
	}
}

func TestStopOnRequestSavesAndGoesOn(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	whole, parts := t.TempDir(), t.TempDir()
	c := config(model, data, whole)
	c.MaxSteps = 40
	run(t, 2, c)
	c.OutputDir = parts
	// Only rank 1 hears of it, some time into the run.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			if b, _ := os.ReadFile(filepath.Join(parts, "metrics.jsonl")); bytes.Count(b, []byte("train")) >= 2 {
				cancel()
				return
			}
		}
	}()
	r, text, errs := ranks(t, 2, func(int) sft.Config { return c }, func(rank int) context.Context {
		if rank == 1 {
			return ctx
		}
		return t.Context()
	})
	require.NoError(t, errors.Join(errs...))
	require.True(t, r.Stopped)
	require.Less(t, r.Steps, 40)
	require.Contains(t, text, "stopped after step")
	require.FileExists(t, filepath.Join(parts, fmt.Sprintf("checkpoint-%d", r.Steps), "checkpoint.json"))
	require.NoFileExists(t, filepath.Join(parts, "adapter", peft.ConfigName))
	c.Resume = "true"
	run(t, 2, c)
	require.Equal(t, adapterBytes(t, whole), adapterBytes(t, parts))
}

func TestEvaluationStopsOnEveryRank(t *testing.T) {
	model := tinyModel(t)
	torch.SetNumThreads(1)
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		built, err := sft.Build(ctx, model, g, sft.ModelOptions{})
		if err != nil {
			return err
		}
		done := 0
		next := func(context.Context) (data.Batch, error) {
			return data.Batch{IDs: []int64{1, 2, 3}, Labels: []int64{1, 2, 3}, B: 1, T: 3, Lengths: []int{3}}, nil
		}
		trainer := &sft.Trainer{Model: built.Model, Sharded: built.Sharded}
		_, err = trainer.Evaluate(ctx, next, sft.EvaluateOptions{
			Stop:     func() bool { return g.Rank() == 2 && done == 2 },
			Progress: func(n int) { done = n },
		})
		if !errors.Is(err, sft.ErrStopped) || done != 2 {
			return fmt.Errorf("rank %d: after %d batches: %w", g.Rank(), done, err)
		}
		return nil
	})
}

func TestWholeModelIsTrainedAndSaved(t *testing.T) {
	model, data, out := tinyModel(t), tinyData(t), t.TempDir()
	c := config(model, data, out)
	c.UseLoRA, c.Use4Bit, c.NestedQuant, c.MaxSteps, c.LearningRate = false, false, false, 20, 2e-3
	r, text := run(t, 2, c)
	require.Less(t, *r.EvalAfter, *r.EvalBefore-0.5, text)
	cfg, err := modelio.ReadConfig(r.Model)
	require.NoError(t, err)
	require.Equal(t, "bfloat16", cfg.DType)
	w, err := modelio.OpenWeights(r.Model)
	require.NoError(t, err)
	defer w.Close()
	m, err := llama.New(cfg, llama.Options{})
	require.NoError(t, err)
	require.NoError(t, llama.Load(t.Context(), m, w, llama.LoadOptions{}))
	_, err = tokenizer.Load(r.Model)
	require.NoError(t, err)
}

func TestFaultsAreNamedOnEveryRank(t *testing.T) {
	model, data := tinyModel(t), tinyData(t)
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "train.jsonl"), []byte(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}
{"messages":[{"role":"user","content":`), 0o666))
	foreign := filepath.Join(t.TempDir(), "ids.jsonl")
	require.NoError(t, os.WriteFile(foreign, []byte(`{"input_ids":[1,2,99999]}`), 0o666))
	shallow := tinyModel(t)
	fewer, err := modelio.ReadConfig(shallow)
	require.NoError(t, err)
	fewer.NumHiddenLayers--
	require.NoError(t, modelio.WriteConfig(shallow, fewer))
	halved := tinyModel(t) // one rank fails while the other waits for its part of the scales
	weights, err := safetensors.Create(filepath.Join(halved, modelio.WeightsName), nil, nil)
	require.NoError(t, err)
	require.NoError(t, weights.Commit())
	cases := []struct {
		name   string
		change func(c *sft.Config, rank int)
		want   string
	}{
		{"no model", func(c *sft.Config, _ int) { c.ModelNameOrPath = "/no/such/model" }, "/no/such/model"},
		{"no data", func(c *sft.Config, _ int) { c.DatasetName = "/no/such/data" }, "/no/such/data"},
		{"truncated data", func(c *sft.Config, _ int) { c.DatasetName = broken }, "train.jsonl:2:"},
		{"too long", func(c *sft.Config, _ int) { c.MaxLength = 97 }, "max_position_embeddings"},
		{"padded too long", func(c *sft.Config, _ int) { c.PadToMultipleOf = 97 }, "pad_to_multiple_of is 97"},
		{"a token without an embedding", func(c *sft.Config, _ int) { c.DatasetName = foreign }, `id 99999, for which a model with a vocab_size of`},
		{"a layer that the configuration leaves out", func(c *sft.Config, _ int) { c.ModelNameOrPath = shallow }, "num_hidden_layers"},
		{"no eval split", func(c *sft.Config, _ int) { c.DatasetName = filepath.Join(data, "train.jsonl") }, "eval.jsonl"},
		{"no such layer", func(c *sft.Config, _ int) { c.LoRATargets = []string{"w1"} }, "w1"},
		{"no such schedule", func(c *sft.Config, _ int) { c.LRSchedulerType = "square" }, "square"},
		{"nothing to resume", func(c *sft.Config, _ int) { c.Resume = "true" }, "resume_from_checkpoint"},
		{"bad settings", func(c *sft.Config, _ int) { c.MaxLength, c.TrainBatchSize = 0, -1 }, "per_device_train_batch_size"},
		{"one rank only", func(c *sft.Config, rank int) {
			if rank == 1 {
				c.DatasetName = "/no/such/data"
			}
		}, ""},
		{"weights missing on one rank", func(c *sft.Config, rank int) {
			if rank == 1 {
				c.ModelNameOrPath = halved
			}
		}, ""},
		{"divergence", func(c *sft.Config, _ int) { c.LearningRate, c.MaxGradNorm, c.WarmupSteps = 1e30, 0, 0 }, "learning_rate"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			begin := time.Now()
			_, _, errs := ranks(t, 2, func(rank int) sft.Config {
				c := config(model, data, filepath.Join(t.TempDir(), "out"))
				tc.change(&c, rank)
				return c
			}, nil)
			for rank, err := range errs {
				require.Error(t, err, "rank %d", rank)
				if tc.want != "" {
					require.ErrorContains(t, err, tc.want, "rank %d", rank)
				}
			}
			require.Less(t, time.Since(begin), 20*time.Second)
		})
	}
}

func TestEmptyBatchesInEvaluation(t *testing.T) {
	model, data, out := tinyModel(t), tinyData(t), t.TempDir()
	c := config(model, data, out)
	c.MaxSteps, c.MaxEvalSamples, c.EvalBatchSize = 1, 3, 1 // the second batch is empty on rank 1
	r2, _ := run(t, 2, c)
	c.OutputDir, c.EvalBatchSize = t.TempDir(), 3
	r1, _ := run(t, 1, c)
	require.InDelta(t, *r1.EvalBefore, *r2.EvalBefore, 1e-6)
	require.False(t, math.IsNaN(*r2.EvalAfter))
}
