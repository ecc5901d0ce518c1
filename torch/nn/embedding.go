package nn

import (
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/initializer"
)

// Embedding picks rows of a table by index.
type Embedding struct {
	Hooks
	Weight *Param `torch:"weight"` // (entries, size)
}

// NewEmbedding makes a table with uninitialised (or, on torch.Meta, absent) values.
func NewEmbedding(entries, size int64, dtype torch.DType, device torch.Device) *Embedding {
	return &Embedding{Weight: NewParam(torch.EmptyOn(device, dtype, entries, size), true)}
}

// Forward turns int64 indices of any shape into rows: the result has one dimension more.
func (e *Embedding) Forward(c *Call, ids *torch.Tensor) *torch.Tensor {
	return torch.Embedding(e.Weight.In(c.Scope), ids)
}

// ResetParameters draws from the standard normal distribution, as PyTorch does.
func (e *Embedding) ResetParameters(g *torch.Generator) {
	initializer.Normal(e.Weight.Tensor(), 0, 1, g)
}
