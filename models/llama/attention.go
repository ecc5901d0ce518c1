package llama

import (
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// AttentionFunc computes causal attention: q is (batch, heads, tokens, head dim), k and v have the key/value heads, of
// which each serves heads/kvHeads query heads. Where cu is not nil, the rows laid end to end hold packed sequences with
// these borders, which must not see each other. The result has q's shape. One query with many keys (generation) sees all
// of them.
type AttentionFunc func(q, k, v *torch.Tensor, cu []int32) *torch.Tensor

// Attention is multi-head attention with rotary positions and grouped key/value heads.
type Attention struct {
	nn.Hooks
	Q nn.LinearLayer `torch:"q_proj"`
	K nn.LinearLayer `torch:"k_proj"`
	V nn.LinearLayer `torch:"v_proj"`
	O nn.LinearLayer `torch:"o_proj"`

	heads, kvHeads, headDim int64
	attend                  AttentionFunc
}

func newAttention(cfg *modelio.Config, dtype torch.DType, attend AttentionFunc) *Attention {
	if attend == nil {
		attend = scaledDotProduct
	}
	a := &Attention{
		heads: int64(cfg.NumAttentionHeads), kvHeads: int64(cfg.NumKeyValueHeads), headDim: int64(cfg.HeadDim), attend: attend,
	}
	hidden := int64(cfg.HiddenSize)
	linear := func(in, out int64) nn.LinearLayer { return nn.NewLinear(in, out, cfg.AttentionBias, dtype, torch.Meta) }
	a.Q = linear(hidden, a.heads*a.headDim)
	a.K = linear(hidden, a.kvHeads*a.headDim)
	a.V = linear(hidden, a.kvHeads*a.headDim)
	a.O = linear(a.heads*a.headDim, hidden)
	return a
}

// Forward gives the attention's contribution to the residual stream, (batch, tokens, hidden).
func (a *Attention) Forward(c *nn.Call, in LayerInput) *torch.Tensor {
	shape := in.X.Shape()
	batch, tokens := shape[0], shape[1]
	q := nn.Run(a.Q, c, in.X).View(batch, tokens, a.heads, a.headDim)
	k := nn.Run(a.K, c, in.X).View(batch, tokens, a.kvHeads, a.headDim)
	v := nn.Run(a.V, c, in.X).View(batch, tokens, a.kvHeads, a.headDim).Transpose(1, 2)
	q = torch.CallOne("gofsdp::rope", q, in.Cos, in.Sin)
	k = torch.CallOne("gofsdp::rope", k, in.Cos, in.Sin)
	if in.cache != nil {
		k, v = in.cache.append(c.Scope, k, v)
	}
	y := a.attend(q, k, v, in.CuSeqlens)
	return nn.Run(a.O, c, y.Transpose(1, 2).Reshape(batch, tokens, a.heads*a.headDim))
}

// scaledDotProduct is PyTorch's attention. Packed sequences are attended to one by one, so that the work is the sum of
// their squares and no mask of tokens² is needed.
func scaledDotProduct(q, k, v *torch.Tensor, cu []int32) *torch.Tensor {
	groups := q.Size(1) / k.Size(1)
	if len(cu) <= 2 {
		return causal(q, repeatHeads(k, groups), repeatHeads(v, groups))
	}
	lengths := make([]int64, len(cu)-1)
	for i := range lengths {
		lengths[i] = int64(cu[i+1] - cu[i])
	}
	shape := q.Shape()
	qs, ks, vs := cut(q, lengths), cut(repeatHeads(k, groups), lengths), cut(repeatHeads(v, groups), lengths)
	parts := make([]*torch.Tensor, len(lengths))
	for i := range parts {
		parts[i] = causal(qs[i], ks[i], vs[i])
	}
	joined := torch.Cat(2, parts...) // (1, heads, batch·tokens, head dim)
	return joined.Transpose(1, 2).Reshape(shape[0], shape[2], shape[1], shape[3]).Transpose(1, 2)
}

func causal(q, k, v *torch.Tensor) *torch.Tensor {
	return torch.ScaledDotProductAttention(q, k, v, torch.AttentionOptions{Causal: q.Size(2) > 1})
}

// cut lays the rows of t (batch, heads, tokens, head dim) end to end and cuts out the sequences, (1, heads, length, head
// dim) each.
func cut(t *torch.Tensor, lengths []int64) []*torch.Tensor {
	s := t.Shape()
	return t.Transpose(1, 2).Reshape(1, s[0]*s[2], s[1], s[3]).Transpose(1, 2).SplitWithSizes(lengths, 2)
}

// repeatHeads gives every query head its key or value head: the CPU's fused attention wants as many of them.
func repeatHeads(t *torch.Tensor, groups int64) *torch.Tensor {
	if groups == 1 {
		return t
	}
	s := t.Shape()
	return t.Unsqueeze(2).Expand(s[0], s[1], groups, s[2], s[3]).Reshape(s[0], s[1]*groups, s[2], s[3])
}
