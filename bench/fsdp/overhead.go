package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/bench/peer"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// overhead holds the CPU seconds of forward and backward, of the two kinds in turn.
type overhead struct {
	Tokens  int64     `json:"tokens"`
	Plain   []float64 `json:"plain_s"`
	Sharded []float64 `json:"sharded_s"`
}

// overhead is the median of the ratios of neighbouring steps, less 1: what changes slowly changes both.
func (o overhead) overhead() float64 {
	var ratios []float64
	for i := range o.Plain {
		ratios = append(ratios, o.Sharded[i]/o.Plain[i]-1)
	}
	return peer.Median(ratios)
}

// measureOverhead trains the model of a folder, with NF4 weights and LoRA, plain and wrapped, a step of the one and a step
// of the other in turn. The losses must be equal bit for bit.
func measureOverhead(ctx context.Context, dir string, tokens int64, steps int) (*overhead, error) {
	plain, err := loadLlama(ctx, dir)
	if err != nil {
		return nil, err
	}
	wrapped, err := loadLlama(ctx, dir)
	if err != nil {
		return nil, err
	}
	sharded, err := fsdp.Wrap(wrapped, dist.NewSingle(), fsdp.Config{Units: fsdp.ByType[*llama.Layer]()})
	if err != nil {
		return nil, err
	}
	var params []*nn.Param
	for _, p := range nn.Params(plain) {
		if p.Trainable() {
			params = append(params, p)
		}
	}
	ids := make([]int64, tokens)
	for i := range ids {
		ids[i] = int64(7+31*i) % 40_000 // any text will do
	}
	o := overhead{Tokens: tokens}
	for i := range steps + 1 { // the first allocates
		a, before, err := step(ctx, plain, ids)
		if err != nil {
			return nil, err
		}
		b, after, err := step(ctx, wrapped, ids)
		if err != nil {
			return nil, err
		}
		if before != after {
			return nil, fmt.Errorf("the loss is %v, and %v with sharding: the figures do not compare the same work", before, after)
		}
		for _, p := range params {
			p.Tensor().SetGrad(nil)
		}
		sharded.ZeroGrad()
		if i > 0 {
			o.Plain, o.Sharded = append(o.Plain, a), append(o.Sharded, b)
		}
	}
	return &o, nil
}

func loadLlama(ctx context.Context, dir string) (_ *llama.Model, err error) {
	defer torch.Catch(&err)
	files, err := modelio.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	model, err := llama.New(files.Config, llama.Options{DType: torch.Float32})
	if err != nil {
		return nil, err
	}
	if _, err := quant.Quantize(model, quant.Config{Type: quant.NF4, DoubleQuant: true}, nil); err != nil {
		return nil, err
	}
	if _, err := peft.Apply(model, peft.Config{R: 16, LoRAAlpha: 16, TargetModules: peft.AllLinear}, peft.Options{Generator: torch.NewGenerator(1)}); err != nil {
		return nil, err
	}
	return model, llama.Load(ctx, model, files.Weights, llama.LoadOptions{Group: dist.NewSingle()})
}

// step gives the CPU seconds of forward and backward, and the loss.
func step(ctx context.Context, model *llama.Model, ids []int64) (seconds, loss float64, err error) {
	begin := cpuTime()
	err = torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		x := s.Own(torch.FromSlice(ids, 1, int64(len(ids))))
		out := nn.Run(model, &nn.Call{Context: ctx, Scope: s, Training: true}, llama.Input{IDs: x, Labels: x, LossScale: 1 / float64(len(ids))})
		loss = out.Loss.Item()
		out.Loss.Backward()
	})
	return (cpuTime() - begin).Seconds(), loss, err
}
