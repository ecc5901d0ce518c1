package llama

import (
	"cmp"
	"fmt"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Options are the choices of New. The zero value takes everything from the configuration.
type Options struct {
	// DType of the parameters; 0 stands for the configuration's, or float32 where it has none.
	DType torch.DType
	// TableDType is the dtype in which the embedding and the output head are kept; 0 stands for DType. A narrower one, such
	// as that of the stored weights, saves memory and is widened as it is used. It needs both to stay frozen.
	TableDType torch.DType
	// Attention replaces scaled dot-product attention, e.g. by a fused kernel; nil is PyTorch's.
	Attention AttentionFunc
}

// Model is a language model: a decoder and the output head.
type Model struct {
	nn.Hooks
	Decoder *Decoder        `torch:"model"`
	Head    *Head           `torch:"lm_head"`
	Config  *modelio.Config `torch:"-"`
	rope    rope
	dtype   torch.DType // of the arithmetic
}

// Decoder is the part that turns tokens into hidden states.
type Decoder struct {
	Embed  *nn.Embedding `torch:"embed_tokens"`
	Layers []*Layer      `torch:"layers"`
	Norm   *nn.RMSNorm   `torch:"norm"`
}

// New makes a model of the configuration's shape on the meta device. Load fills it.
func New(cfg *modelio.Config, o Options) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("llama: %w", err)
	}
	if cfg.HiddenAct != "silu" {
		return nil, fmt.Errorf("llama: hidden_act %q is not supported (supported: silu)", cfg.HiddenAct)
	}
	dtype, err := o.dtype(cfg)
	if err != nil {
		return nil, err
	}
	r, err := newRope(cfg)
	if err != nil {
		return nil, err
	}
	hidden, vocabulary := int64(cfg.HiddenSize), int64(cfg.VocabSize)
	m := &Model{Config: cfg, rope: r, dtype: dtype}
	table := cmp.Or(o.TableDType, dtype)
	err = torch.Try(func() {
		m.Decoder = &Decoder{
			Embed: nn.NewEmbedding(vocabulary, hidden, table, torch.Meta),
			Norm:  nn.NewRMSNorm(hidden, cfg.RMSNormEps, dtype, torch.Meta),
		}
		for range cfg.NumHiddenLayers {
			m.Decoder.Layers = append(m.Decoder.Layers, newLayer(cfg, dtype, o.Attention))
		}
		m.Head = &Head{Weight: m.Decoder.Embed.Weight}
		if !cfg.TieWordEmbeddings {
			m.Head.Weight = nn.NewParam(torch.EmptyOn(torch.Meta, table, vocabulary, hidden), true)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("llama: %w", err)
	}
	return m, nil
}

func (o Options) dtype(cfg *modelio.Config) (torch.DType, error) {
	if o.DType != 0 {
		if !o.DType.IsFloat() {
			return 0, fmt.Errorf("llama: parameters cannot be %v", o.DType)
		}
		return o.DType, nil
	}
	if cfg.DType == "" {
		return torch.Float32, nil
	}
	d, err := torch.ParseDType(cfg.DType)
	if err != nil {
		return 0, fmt.Errorf("llama: dtype of the configuration: %w", err)
	}
	return d, nil
}

// Input of the model. Rows are padded on the right, which needs no mask because attention is causal, or packed: several
// sequences behind each other, whose borders CuSeqlens names.
type Input struct {
	IDs *torch.Tensor // int64 (batch, tokens)
	// Labels are int64 (batch, tokens), unshifted: position t is trained to predict label t+1 of its row. -100 does not
	// count, nor does the first label of a packed sequence. Nil computes no loss.
	Labels *torch.Tensor
	// LossScale multiplies the loss sum, and so the gradients; 0 stands for 1. One over the number of targets of a whole
	// optimiser step gives the mean.
	LossScale float64
	// CuSeqlens are the borders 0, …, batch·tokens of the packed sequences in the rows laid end to end; a sequence does
	// not cross rows. Nil: every row is a sequence.
	CuSeqlens []int32
	// Positions are int64 (batch, tokens); nil counts from 0 in each sequence.
	Positions *torch.Tensor
	// Logits and HiddenStates ask for these outputs. Logits of all positions are large.
	Logits, HiddenStates bool
	// LastOnly limits the logits to the last position of each row.
	LastOnly bool

	cache *cache
}

// Output of the model.
type Output struct {
	// Loss is the sum of the cross-entropies of all targets, fp32, times LossScale; nil without labels.
	Loss *torch.Tensor
	// Count is the number of targets.
	Count int64
	// Hidden are the hidden states after the final norm, (batch, tokens, hidden).
	Hidden *torch.Tensor
	// Logits are (batch, tokens, vocabulary), where asked for.
	Logits *torch.Tensor
	// HiddenStates are the inputs of all layers and, last, Hidden, where asked for.
	HiddenStates []*torch.Tensor
}

// Forward runs the decoder and the head. Call it through nn.Run.
func (m *Model) Forward(c *nn.Call, in Input) Output {
	cu, err := in.borders()
	torch.Throw(err)
	cos, sin := m.rope.tables(c.Scope, in, cu)
	h := nn.Run(m.Decoder.Embed, c, in.IDs).To(m.dtype)
	var out Output
	for i, layer := range m.Decoder.Layers {
		if in.HiddenStates {
			out.HiddenStates = append(out.HiddenStates, h)
		}
		h = nn.Run(layer, c, LayerInput{X: h, Cos: cos, Sin: sin, CuSeqlens: in.CuSeqlens, cache: in.cache.layer(i)})
	}
	out.Hidden = nn.Run(m.Decoder.Norm, c, h)
	if in.HiddenStates {
		out.HiddenStates = append(out.HiddenStates, out.Hidden)
	}
	if in.Labels == nil && !in.Logits {
		return out
	}
	r := nn.Run(m.Head, c, HeadInput{
		Hidden: out.Hidden, Labels: in.Labels, CuSeqlens: in.CuSeqlens, LossScale: in.LossScale,
		Logits: in.Logits, LastOnly: in.LastOnly,
	})
	out.Loss, out.Count, out.Logits = r.Loss, r.Count, r.Logits
	return out
}

// borders checks the input and gives the packed sequences' borders, nil where rows are sequences.
func (in Input) borders() ([]int32, error) {
	shape := in.IDs.Shape()
	if len(shape) != 2 {
		return nil, fmt.Errorf("llama: ids must be (batch, tokens), have shape %v", shape)
	}
	if in.CuSeqlens == nil {
		return nil, nil
	}
	if in.cache != nil {
		return nil, fmt.Errorf("llama: generation takes no packed rows")
	}
	cu, rows, tokens := in.CuSeqlens, shape[0], shape[1]
	if len(cu) < 2 || cu[0] != 0 || int64(cu[len(cu)-1]) != rows*tokens {
		return nil, fmt.Errorf("llama: cu_seqlens must lead from 0 to %d for ids of shape %v, have %v", rows*tokens, shape, cu)
	}
	for i := 1; i < len(cu); i++ {
		if cu[i] <= cu[i-1] {
			return nil, fmt.Errorf("llama: cu_seqlens must rise, but entry %d is %d after %d", i, cu[i], cu[i-1])
		}
		if int64(cu[i-1])/tokens != int64(cu[i]-1)/tokens {
			return nil, fmt.Errorf("llama: the sequence from %d to %d crosses a row of %d tokens", cu[i-1], cu[i], tokens)
		}
	}
	return cu, nil
}

// Head is the output projection to the vocabulary, with its loss.
type Head struct {
	nn.Hooks
	Weight *nn.Param `torch:"weight"` // (vocabulary, hidden); the embedding's own where tied
}

// HeadInput is what Head works on; the fields are as in Input.
type HeadInput struct {
	Hidden, Labels   *torch.Tensor
	CuSeqlens        []int32
	LossScale        float64
	Logits, LastOnly bool
}

// HeadOutput is what Head computes; the fields are as in Output.
type HeadOutput struct {
	Loss   *torch.Tensor
	Count  int64
	Logits *torch.Tensor
}

// Forward computes the loss, a band of rows at a time so that the logits never exist as a whole, and logits where asked
// for.
func (h *Head) Forward(c *nn.Call, in HeadInput) (out HeadOutput) {
	weight := h.Weight.In(c.Scope)
	if in.Logits {
		hidden := in.Hidden
		if in.LastOnly {
			hidden = hidden.Narrow(1, hidden.Size(1)-1, 1)
		}
		out.Logits = hidden.Linear(weight.To(hidden.DType()), nil)
	}
	if in.Labels == nil {
		return out
	}
	scale := in.LossScale
	if scale == 0 {
		scale = 1
	}
	rows := in.Hidden.Reshape(-1, in.Hidden.Size(-1))
	r := torch.Call("gofsdp::linear_cross_entropy", rows, weight, targets(c.Scope, in.Labels, in.CuSeqlens), scale)
	out.Loss = r[0].(*torch.Tensor)
	out.Count = int64(r[1].(*torch.Tensor).Item())
	return out
}

const ignored = -100

// targets shifts labels (batch, tokens) by one and lays the rows end to end; where a row or a packed sequence ends there is
// nothing to predict.
func targets(s *torch.Scope, labels *torch.Tensor, cu []int32) *torch.Tensor {
	shape := labels.Shape()
	end := torch.CallOne("aten::full_like", labels.Narrow(1, 0, 1), ignored)
	t := torch.Cat(1, labels.Narrow(1, 1, shape[1]-1), end).Reshape(-1)
	if len(cu) > 2 {
		last := make([]int64, len(cu)-1)
		for i, border := range cu[1:] {
			last[i] = int64(border) - 1
		}
		index := s.Own(torch.FromSlice(last)).ToDevice(labels.Device())
		t = torch.CallOne("aten::index_fill.int_Scalar", t, 0, index, ignored)
	}
	return t
}
