package llama_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// tinyConfig is a fresh copy of the tiny model's configuration.
func tinyConfig(t *testing.T) *modelio.Config {
	c, err := modelio.ReadConfig(llamatest.Golden("tiny", "plain"))
	require.NoError(t, err)
	return c
}

func TestParameterNamesAreThoseOfTheCheckpoint(t *testing.T) {
	for _, name := range tinyModels {
		c, err := modelio.ReadConfig(llamatest.Golden("tiny", name))
		require.NoError(t, err)
		m, err := llama.New(c, llama.Options{})
		require.NoError(t, err)
		var got []modelio.TensorShape
		for _, n := range nn.NamedParams(m) {
			got = append(got, modelio.TensorShape{Name: n.Name, Shape: n.Param.Shape()})
		}
		require.ElementsMatch(t, c.TensorShapes(), got)
	}
}

func TestNewRefuses(t *testing.T) {
	for want, change := range map[string]func(*modelio.Config){
		`rope type "yarn" is not supported (supported: default, linear, llama3)`: func(c *modelio.Config) { c.Rope.Type, c.Rope.Factor = "yarn", 2 },
		`hidden_act "gelu" is not supported`:                                     func(c *modelio.Config) { c.HiddenAct = "gelu" },
		`unknown dtype "int3"`:                                                   func(c *modelio.Config) { c.DType = "int3" },
		`num_hidden_layers is 0`:                                                 func(c *modelio.Config) { c.NumHiddenLayers = 0 },
	} {
		c := tinyConfig(t)
		change(c)
		_, err := llama.New(c, llama.Options{})
		require.ErrorContains(t, err, want)
	}
}

func TestLinearRopeStretchesPositions(t *testing.T) {
	c := tinyConfig(t)
	plain := llama.Frequencies(t, c)
	c.Rope.Type, c.Rope.Factor = "linear", 4
	for i, f := range llama.Frequencies(t, c) {
		require.Equal(t, plain[i]/4, f)
	}
}

func TestLoadRefuses(t *testing.T) {
	files, err := modelio.Open(llamatest.Golden("tiny", "plain"))
	require.NoError(t, err)
	defer files.Close()
	c := tinyConfig(t)
	c.IntermediateSize = 100
	m, err := llama.New(c, llama.Options{})
	require.NoError(t, err)
	err = llama.Load(t.Context(), m, files.Weights, llama.LoadOptions{})
	require.ErrorContains(t, err, "gate_proj.weight is stored with shape [172 64], the model has [100 64]")

	c = tinyConfig(t)
	c.AttentionBias = true
	m, err = llama.New(c, llama.Options{})
	require.NoError(t, err)
	err = llama.Load(t.Context(), m, files.Weights, llama.LoadOptions{})
	require.ErrorContains(t, err, `no tensor "model.layers.0.self_attn.q_proj.bias"`)

	m, err = llama.New(tinyConfig(t), llama.Options{})
	require.NoError(t, err)
	stopped, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	require.ErrorIs(t, llama.Load(stopped, m, files.Weights, llama.LoadOptions{}), context.Canceled)
}

// A rank loads its rows only, in place where the parameter has memory already, and in the model's dtype.
func TestLoadReadsOwnRows(t *testing.T) {
	whole := llamatest.Model(t, "tiny", "plain")
	files, err := modelio.Open(llamatest.Golden("tiny", "plain"))
	require.NoError(t, err)
	defer files.Close()
	m, err := llama.New(tinyConfig(t), llama.Options{DType: torch.BFloat16})
	require.NoError(t, err)
	embed := m.Decoder.Embed.Weight
	embed.SetRows(100, 103)
	kept := torch.Zeros(torch.BFloat16, 3, 64)
	embed.SetTensor(kept)
	m.Head.Weight.SetRows(256, 256)
	calls := 0
	require.NoError(t, llama.Load(t.Context(), m, files.Weights, llama.LoadOptions{Progress: func(done, total int) {
		calls++
		require.Equal(t, calls, done)
	}}))
	require.Equal(t, len(nn.Params(m)), calls)
	require.True(t, kept.IsSame(embed.Tensor()))
	want := whole.Decoder.Embed.Weight.Tensor().Detach().Narrow(0, 100, 3).To(torch.BFloat16)
	require.True(t, want.Equal(kept.Detach()))
	require.Equal(t, []int64{0, 64}, m.Head.Weight.Tensor().Shape())
	for _, n := range nn.NamedParams(m) {
		require.Equal(t, torch.BFloat16, n.Param.Tensor().DType(), n.Name)
		require.True(t, n.Param.Tensor().RequiresGrad(), n.Name)
	}
}

func TestForwardRefusesBadBorders(t *testing.T) {
	m := llamatest.Model(t, "tiny", "plain")
	s := torch.NewScope(nil)
	defer s.Close()
	ids := s.Own(torch.Zeros(torch.Int64, 2, 10))
	for want, cu := range map[string][]int32{
		"from 0 to 20":         {0, 10},
		"must rise":            {0, 10, 10, 20},
		"from 5 to 15 crosses": {0, 5, 15, 20},
	} {
		err := torch.Try(func() { nn.Run(m, &nn.Call{Scope: s}, llama.Input{IDs: ids, CuSeqlens: cu}) })
		require.ErrorContains(t, err, want)
	}
	err := torch.Try(func() { nn.Run(m, &nn.Call{Scope: s}, llama.Input{IDs: ids.View(20)}) })
	require.ErrorContains(t, err, "(batch, tokens)")
}

// Generation with cached keys and values picks what full forward passes pick.
func TestParityGenerate(t *testing.T) {
	m := llamatest.Model(t, "tiny", "rope_llama3")
	prompt := []int64{17, 42, 99, 5}
	var got []int64
	for id, err := range llama.Generate(t.Context(), m, prompt, llama.GenerateOptions{MaxNewTokens: 12, Stop: []int64{}}) {
		require.NoError(t, err)
		got = append(got, id)
	}
	require.Len(t, got, 12)
	all := append([]int64{}, prompt...)
	for _, id := range got {
		s := torch.NewScope(nil)
		out := nn.Run(m, &nn.Call{Scope: s}, llama.Input{IDs: s.Own(torch.FromSlice(all, 1, int64(len(all)))), Logits: true, LastOnly: true})
		require.Equal(t, id, torch.Slice[int64](out.Logits.View(-1).Argmax(0))[0], fmt.Sprint(all))
		s.Close()
		all = append(all, id)
	}

	// A stop token ends the text and is given.
	var stopped []int64
	for id, err := range llama.Generate(t.Context(), m, prompt, llama.GenerateOptions{Stop: []int64{got[3]}}) {
		require.NoError(t, err)
		stopped = append(stopped, id)
	}
	require.Equal(t, got[:len(stopped)], stopped)
	require.Equal(t, got[3], stopped[len(stopped)-1])

	// Errors end it.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range llama.Generate(ended, m, prompt, llama.GenerateOptions{}) {
		require.ErrorIs(t, err, context.Canceled)
	}
	for _, err := range llama.Generate(t.Context(), m, nil, llama.GenerateOptions{}) {
		require.ErrorContains(t, err, "the prompt is empty")
	}
	torch.NoGrad(func() { m.Decoder.Embed.Weight.Tensor().VariableData().Fill(math.NaN()) })
	for _, err := range llama.Generate(t.Context(), m, prompt, llama.GenerateOptions{}) {
		require.ErrorContains(t, err, "the logit of token 0 is NaN")
	}
}

func TestSampling(t *testing.T) {
	p := []float64{0.5, 0.3, 0.15, 0.05}
	logits := make([]float32, len(p))
	for i := range p {
		logits[i] = float32(math.Log(p[i]))
	}
	const n = 20000
	for name, c := range map[string]struct {
		o    llama.GenerateOptions
		want []float64
	}{
		"all":    {llama.GenerateOptions{Temperature: 1}, p},
		"top-k":  {llama.GenerateOptions{Temperature: 1, TopK: 2}, []float64{0.625, 0.375, 0, 0}},
		"top-p":  {llama.GenerateOptions{Temperature: 1, TopP: 0.7}, []float64{0.625, 0.375, 0, 0}},
		"both":   {llama.GenerateOptions{Temperature: 1, TopK: 3, TopP: 0.99}, []float64{0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0}},
		"cold":   {llama.GenerateOptions{Temperature: 0.01}, []float64{1, 0, 0, 0}},
		"greedy": {llama.GenerateOptions{}, []float64{1, 0, 0, 0}},
	} {
		counts := llama.PickMany(c.o, logits, n)
		for i := range counts {
			require.InDelta(t, c.want[i], float64(counts[i])/n, 0.015, "%s: token %d", name, i)
		}
	}
}

// Attention biases, as some relatives of Llama have them, take part in forward and backward.
func TestBiases(t *testing.T) {
	c := tinyConfig(t)
	c.AttentionBias, c.MLPBias = true, true
	m, err := llama.New(c, llama.Options{DType: torch.Float32})
	require.NoError(t, err)
	g := torch.NewGenerator(1)
	torch.NoGrad(func() {
		for _, p := range nn.Params(m) {
			p.SetTensor(torch.Randn(g, torch.Float32, p.Shape()...).MulScalar(0.1))
		}
	})
	s := torch.NewScope(nil)
	defer s.Close()
	ids := s.Own(torch.Arange(torch.Int64, 0, 20)).View(2, 10)
	nn.Run(m, &nn.Call{Scope: s, Training: true}, llama.Input{IDs: ids, Labels: ids}).Loss.Backward()
	for _, n := range nn.NamedParams(m) {
		require.NotNil(t, n.Param.Tensor().Grad(), n.Name)
	}
}
