package llama_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// requireSmolLM2Logits compares a SmolLM2 with the golden values in file.
func requireSmolLM2Logits(t *testing.T, m *llama.Model, loss float64, file string, tol float64) {
	want := llamatest.Open(t, "smollm2_logits", file)
	step := torch.NewScope(nil)
	defer step.Close()
	torch.NoGrad(func() {
		ids := want.Get("input_ids").In(step).View(1, -1)
		out := nn.Run(m, &nn.Call{Scope: step}, llama.Input{IDs: ids, Labels: ids, Logits: true})
		require.InDelta(t, loss, out.Loss.Item()/float64(out.Count), 2e-5)
		logits := out.Logits.Squeeze(0)
		at := want.Get("top20_indices")
		diff := llamatest.Near(t, want.Get("top20_values"), logits.Gather(1, at.In(step)), tol, "top 20 logits")
		llamatest.Near(t, want.Get("logsumexp"), logits.LogSumExp(-1), tol, "logsumexp")
		if want.Has("last_logits") {
			llamatest.Near(t, want.Get("last_logits").View(-1), logits.Select(0, -1), tol, "last logits")
		}
		t.Logf("loss differs by %.2g, the top 20 logits by at most %.2g", out.Loss.Item()/float64(out.Count)-loss, diff)
	})
}

func TestGoldenSmolLM2(t *testing.T) {
	var meta struct {
		Loss   float64 `json:"loss"`
		Prompt string  `json:"greedy_prompt_text"`
		Greedy []int64 `json:"greedy_24_new_ids"`
	}
	llamatest.JSON(t, &meta, "smollm2_logits", "meta.json")
	dir := llamatest.SmolLM2(t)
	m := llamatest.Load(t, dir, llama.Options{DType: torch.Float32}, nil)
	requireSmolLM2Logits(t, m, meta.Loss, "fp32.safetensors", 2e-4)

	text, err := tokenizer.Load(dir)
	require.NoError(t, err)
	ids, err := text.Encode(meta.Prompt, tokenizer.EncodeOptions{})
	require.NoError(t, err)
	prompt := make([]int64, len(ids))
	for i, id := range ids {
		prompt[i] = int64(id)
	}
	var got []int64
	for id, err := range llama.Generate(t.Context(), m, prompt, llama.GenerateOptions{MaxNewTokens: len(meta.Greedy)}) {
		require.NoError(t, err)
		got = append(got, id)
	}
	require.Equal(t, meta.Greedy, got)
}
