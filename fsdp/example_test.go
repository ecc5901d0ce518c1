package fsdp_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// One step of a model of two linear layers, each a unit. On more ranks only the group differs.
func Example() {
	net := nn.NewSequential(
		nn.NewLinear(4, 8, true, torch.Float32, torch.CPU), nn.NewLinear(8, 2, true, torch.Float32, torch.CPU))
	nn.ResetParameters(net, torch.NewGenerator(1))
	model, err := fsdp.Wrap(net, dist.NewSingle(), fsdp.Config{Units: fsdp.ByType[*nn.Linear]()})
	if err != nil {
		fmt.Println(err)
		return
	}
	optimizer, err := optim.NewAdamW(nn.Params(net), optim.AdamConfig{LR: 1e-3})
	if err != nil {
		fmt.Println(err)
		return
	}
	step := torch.NewScope(nil)
	defer step.Close()
	call := &nn.Call{Scope: step, Training: true}
	err = torch.Try(func() {
		nn.Run(net, call, step.Own(torch.Ones(torch.Float32, 3, 4))).Sum().Backward()
		_, err := model.ClipGradNorm(call.Ctx(), 1)
		torch.Throw(err)
		optimizer.Step()
	})
	model.ZeroGrad()
	fmt.Printf("%q %v\n", model.Units(), err)
	// Output: ["0" "1" ""] <nil>
}
