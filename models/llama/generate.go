package llama

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// GenerateOptions are the settings of Generate. The zero value is greedy: always the most likely token.
type GenerateOptions struct {
	MaxNewTokens int     // 0 stands for 256
	Temperature  float64 // 0 is greedy; 1 samples from the model's distribution
	TopK         int     // sample from the k most likely tokens; 0: from all
	TopP         float64 // sample from the most likely tokens that together have this probability; 0 and 1: from all
	Seed         uint64  // of the samples
	Stop         []int64 // tokens that end the text; nil stands for the configuration's end-of-sequence tokens
}

// Generate continues a prompt and gives token by token, the stop token included. Keys and values of past tokens are
// cached. An error ends the sequence. The model may be sharded; then every rank calls Generate with the same arguments.
func Generate(ctx context.Context, m *Model, prompt []int64, o GenerateOptions) iter.Seq2[int64, error] {
	if o.MaxNewTokens == 0 {
		o.MaxNewTokens = 256
	}
	if o.Stop == nil {
		for _, id := range m.Config.EOSTokenIDs {
			o.Stop = append(o.Stop, int64(id))
		}
	}
	return func(yield func(int64, error) bool) {
		if len(prompt) == 0 {
			yield(0, errors.New("llama: generate: the prompt is empty"))
			return
		}
		whole := torch.NewScope(nil)
		defer whole.Close()
		past := newCache(whole, len(m.Decoder.Layers), int64(len(prompt)+o.MaxNewTokens))
		random := rand.New(rand.NewPCG(o.Seed, 0))
		next := prompt
		for range o.MaxNewTokens {
			logits, err := m.nextLogits(ctx, whole, past, next)
			if err != nil {
				yield(0, fmt.Errorf("llama: generate: %w", err))
				return
			}
			for token, x := range logits {
				if math.IsNaN(float64(x)) || math.IsInf(float64(x), 1) {
					yield(0, fmt.Errorf("llama: generate: the logit of token %d is %v: the weights, or those of the adapter, are broken", token, x))
					return
				}
			}
			id := o.pick(logits, random)
			if !yield(id, nil) || slices.Contains(o.Stop, id) {
				return
			}
			next = []int64{id}
		}
	}
}

// nextLogits feeds tokens and gives the logits of the one that follows.
func (m *Model) nextLogits(ctx context.Context, whole *torch.Scope, past *cache, tokens []int64) (logits []float32, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = torch.Try(func() {
		torch.NoGrad(func() {
			step := torch.NewScope(whole)
			defer step.Close()
			ids := step.Own(torch.FromSlice(tokens, 1, int64(len(tokens)))).ToDevice(m.Decoder.Embed.Weight.Tensor().Device())
			out := nn.Run(m, &nn.Call{Context: ctx, Scope: step}, Input{IDs: ids, Logits: true, LastOnly: true, cache: past})
			logits = torch.Slice[float32](out.Logits.To(torch.Float32))
		})
	})
	return logits, err
}

type candidate struct {
	id     int64
	weight float64
}

// pick chooses a token. Limits apply in the order temperature, top-k, top-p.
func (o GenerateOptions) pick(logits []float32, random *rand.Rand) int64 {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	if o.Temperature <= 0 {
		return int64(best)
	}
	list := make([]candidate, len(logits))
	for i, x := range logits {
		list[i] = candidate{int64(i), math.Exp(float64(x-logits[best]) / o.Temperature)}
	}
	cutK, cutP := o.TopK > 0 && o.TopK < len(list), o.TopP > 0 && o.TopP < 1
	if cutK || cutP {
		slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(b.weight, a.weight) })
	}
	if cutK {
		list = list[:o.TopK]
	}
	if cutP {
		left := o.TopP * total(list)
		keep := 0
		for keep < len(list) && left > 0 {
			left -= list[keep].weight
			keep++
		}
		list = list[:keep]
	}
	at := random.Float64() * total(list)
	for _, c := range list {
		if at -= c.weight; at < 0 {
			return c.id
		}
	}
	return list[len(list)-1].id
}

func total(list []candidate) (sum float64) {
	for _, c := range list {
		sum += c.weight
	}
	return sum
}
