package sft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	// WrapKinds are the classes whose modules become units (transformer_layer_cls_to_wrap), in place of FSDP.Units; one that
	// the model does not have is an error. Without both, every decoder layer is a unit.
	WrapKinds []string
	// LocalRanks is the number of ranks of a machine, over which hybrid strategies shard; they replicate over machines.
	// 0: all ranks are on one.
	LocalRanks int
	Progress   func(done, total int)
}

// Built is a model on this rank.
type Built struct {
	Model   *llama.Model
	Sharded *fsdp.Model
	Adapter *peft.Adapter // nil without LoRA
	Params  []*nn.Param   // the trainable ones, in order
	Names   []string      // of Params

	mesh *dist.Mesh // of a hybrid strategy, or nil
}

// Close leaves the groups that sharding made beside the one of all ranks. A collective; without such groups it does nothing.
func (b *Built) Close(ctx context.Context) error {
	err := b.Sharded.Close(ctx)
	if b.mesh != nil {
		err = errors.Join(err, b.mesh.Close(ctx))
	}
	return err
}

// Abort ends what other ranks wait for in these groups.
func (b *Built) Abort(cause error) {
	if b.mesh != nil {
		b.mesh.Abort(cause)
	}
}

// Build makes the model of a folder, shards it over the ranks of g, one unit per decoder layer unless told otherwise, and loads
// this rank's rows. It is a collective. Parameters are kept in fp32, and computed in it unless ModelOptions.FSDP has another
// precision: CPUs without bf16 units are fifty times slower in bf16.
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
	if o.FSDP.Units, err = units(model, o); err != nil {
		return nil, err
	}
	if err := checkIgnored(model, o.FSDP.Ignore); err != nil {
		return nil, err
	}
	if err := b.wrap(ctx, g, o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.Abort(err)
		}
	}()
	err = llama.Load(ctx, model, weights, llama.LoadOptions{Group: b.Sharded.ShardGroup(), Progress: o.Progress})
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

// wrap shards the model: over all ranks, or for a hybrid strategy over those of a machine.
func (b *Built) wrap(ctx context.Context, g dist.Group, o ModelOptions) (err error) {
	if o.FSDP.Strategy != fsdp.HybridShard && o.FSDP.Strategy != fsdp.HybridShardZeRO2 {
		b.Sharded, err = fsdp.Wrap(b.Model, g, o.FSDP)
		return err
	}
	local := o.LocalRanks
	if local == 0 {
		local = g.Size()
	}
	most, err := reduceOverRanks(ctx, g, dist.Max, float64(local), -float64(local))
	if err != nil {
		return err
	}
	if most[0] != -most[1] || g.Size()%local != 0 {
		return fmt.Errorf("sft: rank %d: %v needs as many ranks on every machine: there are %d ranks, %d of them here, and up to %v elsewhere",
			g.Rank(), o.FSDP.Strategy, g.Size(), local, most[0])
	}
	b.mesh, err = dist.NewMesh(ctx, g, []int{g.Size() / local, local}, []string{"replicate", "shard"})
	if err != nil {
		return err
	}
	if b.Sharded, err = fsdp.WrapMesh(ctx, b.Model, b.mesh, o.FSDP); err != nil {
		b.Abort(err)
	}
	return err
}

// units is the policy that chooses the units.
func units(model *llama.Model, o ModelOptions) (fsdp.Policy, error) {
	if o.WrapKinds == nil {
		if o.FSDP.Units == nil {
			return fsdp.ByKind("LlamaDecoderLayer"), nil
		}
		return wrappable(model, o.FSDP.Units), nil
	}
	var have []string
	for _, m := range nn.Modules(model) {
		if k, ok := m.Module.(fsdp.Kind); ok && !slices.Contains(have, k.ModuleKind()) {
			have = append(have, k.ModuleKind())
		}
	}
	for _, kind := range o.WrapKinds {
		if !slices.Contains(have, kind) {
			return nil, fmt.Errorf("sft: fsdp_transformer_layer_cls_to_wrap: the model has no class %q; it has %s", kind, strings.Join(have, ", "))
		}
	}
	return fsdp.ByKind(o.WrapKinds...), nil
}

// wrappable leaves two kinds of modules out of a policy: those with tied parameters, which other modules need at other times,
// and base layers, whose weights the adapter's layer reads without running them.
func wrappable(model *llama.Model, policy fsdp.Policy) fsdp.Policy {
	tied := map[*nn.Param]bool{}
	for _, n := range nn.NamedParams(model) {
		tied[n.Param] = len(n.Shared) > 0
	}
	base := map[any]bool{}
	for _, m := range nn.Modules(model) {
		if adapter, ok := m.Module.(*peft.LoRALinear); ok {
			for _, inner := range nn.Modules(adapter)[1:] {
				base[inner.Module] = true
			}
		}
	}
	return func(c fsdp.Candidate) bool {
		return !base[c.Module] && policy(c) && !slices.ContainsFunc(c.Params, func(n nn.Named) bool { return tied[n.Param] })
	}
}

// checkIgnored refuses to leave parameters out of sharding that are trained: nobody would sum their gradients.
func checkIgnored(model *llama.Model, ignore func(nn.Named) bool) error {
	if ignore == nil {
		return nil
	}
	for _, n := range nn.NamedParams(model) {
		if n.Param.Trainable() && ignore(n) {
			return fmt.Errorf("sft: fsdp_ignored_modules matches a module with %s, which is trained: only frozen modules can be ignored", n.Name)
		}
	}
	return nil
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

// adam are the settings of AdamW.
func (c *Config) adam() optim.AdamConfig {
	return optim.AdamConfig{LR: c.LearningRate, Beta1: c.AdamBeta1, Beta2: c.AdamBeta2, Eps: c.AdamEpsilon, WeightDecay: c.WeightDecay}
}

// optimizer makes the AdamW of a run. Biases and norms are not decayed, as in transformers.
func (b *Built) optimizer(c *Config) (*optim.Adam, error) {
	decayed, plain := optim.SplitDecay(nn.NamedParams(b.Model))
	opt, err := optim.NewAdamW(decayed, c.adam())
	if err != nil {
		return nil, err
	}
	opt.AddGroup(plain, c.LearningRate, 0)
	for _, g := range opt.Groups() { // a learning rate of 0 is meant, where AdamConfig has a default for it
		g.LR, g.InitialLR = c.LearningRate, c.LearningRate
	}
	return opt, nil
}
