package llama

import (
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Layer is a decoder layer, the unit of sharding and of activation checkpointing.
type Layer struct {
	nn.Hooks
	Attention     *Attention  `torch:"self_attn"`
	MLP           *MLP        `torch:"mlp"`
	InputNorm     *nn.RMSNorm `torch:"input_layernorm"`
	AttentionNorm *nn.RMSNorm `torch:"post_attention_layernorm"`
}

// ModuleKind is the name by which wrap policies know the layer: that of the class in transformers.
func (*Layer) ModuleKind() string { return "LlamaDecoderLayer" }

func newLayer(cfg *modelio.Config, dtype torch.DType, attend AttentionFunc) *Layer {
	hidden := int64(cfg.HiddenSize)
	return &Layer{
		Attention:     newAttention(cfg, dtype, attend),
		MLP:           newMLP(cfg, dtype),
		InputNorm:     nn.NewRMSNorm(hidden, cfg.RMSNormEps, dtype, torch.Meta),
		AttentionNorm: nn.NewRMSNorm(hidden, cfg.RMSNormEps, dtype, torch.Meta),
	}
}

// LayerInput is the input of a decoder layer.
type LayerInput struct {
	X         *torch.Tensor // (batch, tokens, hidden)
	Cos, Sin  *torch.Tensor // rotary tables, fp32 (tokens, head dim) or (batch, tokens, head dim)
	CuSeqlens []int32       // as in Input
	cache     *layerCache
}

// Forward adds attention and the MLP to the residual stream.
func (l *Layer) Forward(c *nn.Call, in LayerInput) *torch.Tensor {
	x := in.X
	in.X = nn.Run(l.InputNorm, c, x)
	x = x.Add(nn.Run(l.Attention, c, in))
	return x.Add(nn.Run(l.MLP, c, nn.Run(l.AttentionNorm, c, x)))
}

// MLP is the gated feed-forward network: down(silu(gate(x)) · up(x)).
type MLP struct {
	nn.Hooks
	Gate nn.LinearLayer `torch:"gate_proj"`
	Up   nn.LinearLayer `torch:"up_proj"`
	Down nn.LinearLayer `torch:"down_proj"`
}

func newMLP(cfg *modelio.Config, dtype torch.DType) *MLP {
	hidden, inner := int64(cfg.HiddenSize), int64(cfg.IntermediateSize)
	return &MLP{
		Gate: nn.NewLinear(hidden, inner, cfg.MLPBias, dtype, torch.Meta),
		Up:   nn.NewLinear(hidden, inner, cfg.MLPBias, dtype, torch.Meta),
		Down: nn.NewLinear(inner, hidden, cfg.MLPBias, dtype, torch.Meta),
	}
}

// Forward takes and gives (…, hidden).
func (m *MLP) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	gate, up := nn.Run(m.Gate, c, x), nn.Run(m.Up, c, x)
	return nn.Run(m.Down, c, torch.CallOne("gofsdp::swiglu", gate, up))
}
