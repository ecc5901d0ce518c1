package sft

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// ModelOptions choose what Build makes of a model folder.
type ModelOptions struct {
	Quant         *quant.Config // 4-bit base weights; nil keeps them
	LoRA          *peft.Config  // adapters; nil trains the whole model
	Checkpointing bool          // recompute activations in backward
	Seed          int64         // of the adapters' first weights
	FSDP          fsdp.Config   // DivideFactor 0 becomes 1: the trainer's losses are parts of one mean
	Progress      func(done, total int)
}

// Built is a model on this rank.
type Built struct {
	Model   *llama.Model
	Sharded *fsdp.Model
	Adapter *peft.Adapter // nil without LoRA
	Params  []*nn.Param   // the trainable ones, in order
	Names   []string      // of Params
}

// Build makes the model of a folder, shards it over the ranks of g, one unit per decoder layer, and loads this rank's
// rows. It is a collective. Parameters are computed in fp32: CPUs without bf16 units are fifty times slower in bf16.
func Build(ctx context.Context, dir string, g dist.Group, o ModelOptions) (_ *Built, err error) {
	defer torch.Catch(&err)
	cfg, err := modelio.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	weights, err := modelio.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	defer weights.Close()
	if err := weights.Check(cfg); err != nil {
		return nil, err
	}
	options := llama.Options{DType: torch.Float32}
	if o.LoRA != nil { // the tables stay frozen, as narrow as they are stored
		options.TableDType = storedDType(weights, "model.embed_tokens.weight")
	}
	model, err := llama.New(cfg, options)
	if err != nil {
		return nil, err
	}
	b := &Built{Model: model}
	if o.Quant != nil {
		if _, err := quant.Quantize(model, *o.Quant, nil); err != nil {
			return nil, err
		}
	}
	if o.LoRA != nil {
		if b.Adapter, err = peft.Apply(model, *o.LoRA, peft.Options{Generator: torch.NewGenerator(o.Seed)}); err != nil {
			return nil, err
		}
	}
	for _, layer := range model.Decoder.Layers {
		layer.SetCheckpoint(o.Checkpointing)
	}
	if o.FSDP.DivideFactor == 0 {
		o.FSDP.DivideFactor = 1
	}
	if o.FSDP.Units == nil {
		o.FSDP.Units = fsdp.ByKind("LlamaDecoderLayer")
	}
	if b.Sharded, err = fsdp.Wrap(model, g, o.FSDP); err != nil {
		return nil, err
	}
	err = llama.Load(ctx, model, weights, llama.LoadOptions{Group: g, Progress: o.Progress})
	if err != nil {
		return nil, err
	}
	if err := b.Sharded.Load(); err != nil {
		return nil, err
	}
	for _, n := range nn.NamedParams(model) {
		if n.Param.Trainable() {
			b.Params, b.Names = append(b.Params, n.Param), append(b.Names, n.Name)
		}
	}
	if len(b.Params) == 0 {
		return nil, fmt.Errorf("sft: the model of %s has no trainable parameter", dir)
	}
	return b, nil
}

// storedDType is the dtype of a stored weight, or 0 where it is no floating-point type that libtorch has.
func storedDType(w *modelio.Weights, name string) torch.DType {
	view, err := w.Tensor(name)
	if err != nil {
		return 0
	}
	dtype, err := torch.ParseDType(view.DType)
	if err != nil || !dtype.IsFloat() {
		return 0
	}
	return dtype
}

// optimizer makes the AdamW of a run. Biases and norms are not decayed, as in transformers.
func (b *Built) optimizer(c *Config) (*optim.Adam, error) {
	decayed, plain := optim.SplitDecay(nn.NamedParams(b.Model))
	opt, err := optim.NewAdamW(decayed, optim.AdamConfig{
		LR: c.LearningRate, Beta1: c.AdamBeta1, Beta2: c.AdamBeta2, Eps: c.AdamEpsilon, WeightDecay: c.WeightDecay,
	})
	if err != nil {
		return nil, err
	}
	opt.AddGroup(plain, c.LearningRate, 0)
	for _, g := range opt.Groups() { // a learning rate of 0 is meant, where AdamConfig has a default for it
		g.LR, g.InitialLR = c.LearningRate, c.LearningRate
	}
	return opt, nil
}
