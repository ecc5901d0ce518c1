// Command minimal fine-tunes a language model by hand: adapters on 4-bit weights, sharded over the ranks, one text each.
//
//	gofsdp launch --num_processes 2 -- go run ./examples/minimal MODEL_DIR
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

var texts = []string{
	"A goroutine is a lightweight thread managed by the Go runtime.",
	"A channel is a typed conduit through which you can send and receive values.",
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		log.Fatal("minimal: ", err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("give a model folder")
	}
	env, err := dist.FromEnv() // set by gofsdp launch, torchrun, Slurm, MPI, …
	if err != nil {
		return err
	}
	group, leave, err := dist.Init(ctx, env, time.Minute)
	if err != nil {
		return err
	}
	// Operators panic with an error that names their shapes. Try makes it a plain error again.
	if err := torch.Try(func() { train(ctx, group, args[0], 10) }); err != nil {
		group.Abort(err) // do not let the other ranks wait
		return err
	}
	return leave(ctx)
}

func train(ctx context.Context, group dist.Group, dir string, steps int) (losses []float64) {
	files, err := modelio.Open(dir)
	torch.Throw(err)
	defer files.Close()
	model, err := llama.New(files.Config, llama.Options{DType: torch.Float32}) // no memory yet
	torch.Throw(err)
	_, err = quant.Quantize(model, quant.Config{Type: quant.NF4, DoubleQuant: true}, nil)
	torch.Throw(err)
	_, err = peft.Apply(model, peft.Config{R: 8, LoRAAlpha: 16, TargetModules: peft.AllLinear}, peft.Options{})
	torch.Throw(err)
	sharded, err := fsdp.Wrap(model, group, fsdp.Config{Units: fsdp.ByType[*llama.Layer]()})
	torch.Throw(err)
	torch.Throw(llama.Load(ctx, model, files.Weights, llama.LoadOptions{Group: group})) // this rank's rows
	var params []*nn.Param
	for _, p := range nn.NamedParams(model) {
		if p.Param.Trainable() {
			params = append(params, p.Param)
		}
	}
	optimizer, err := optim.NewAdamW(params, optim.AdamConfig{LR: 1e-3})
	torch.Throw(err)
	defer optimizer.Close()

	ids := encode(dir, texts[group.Rank()%len(texts)])
	for i := range steps {
		step := torch.NewScope(nil) // owns every tensor of the step
		x := step.Own(torch.FromSlice(ids, 1, int64(len(ids))))
		out := nn.Run(model, &nn.Call{Context: ctx, Scope: step, Training: true}, llama.Input{IDs: x, Labels: x})
		loss := out.Loss.DivScalar(float64(out.Count))
		loss.Backward()
		norm, err := sharded.ClipGradNorm(ctx, 1)
		torch.Throw(err)
		optimizer.Step()
		sharded.ZeroGrad()
		losses = append(losses, loss.Item())
		fmt.Printf("rank %d  step %2d  loss %.4f  norm %.3f\n", group.Rank(), i+1, losses[i], norm)
		step.Close()
	}
	return losses
}

// encode gives the token ids of a text.
func encode(dir, text string) []int64 {
	tok, err := tokenizer.Load(dir)
	torch.Throw(err)
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{AddSpecialTokens: true})
	torch.Throw(err)
	wide := make([]int64, len(ids))
	for i, id := range ids {
		wide[i] = int64(id)
	}
	return wide
}
