package optim_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// Fits y = 2x + 1.
func Example() {
	w := nn.NewParam(torch.Zeros(torch.Float32, 2), true)
	opt, err := optim.NewAdamW([]*nn.Param{w}, optim.AdamConfig{LR: 0.1})
	if err != nil {
		panic(err)
	}
	defer opt.Close()
	for range 300 {
		step := torch.NewScope(nil)
		x := step.Own(torch.FromSlice([]float32{0, 1, 1, 1, 2, 1, 3, 1}, 4, 2))
		y := step.Own(torch.FromSlice([]float32{1, 3, 5, 7}))
		x.MatMul(w.In(step)).MSELoss(y, torch.ReduceMean).Backward()
		optim.ClipGradNorm(opt.Groups()[0].Params, 1, 2)
		opt.Step()
		opt.ZeroGrad()
		step.Close()
	}
	got := torch.Slice[float32](w.Tensor())
	fmt.Printf("%.1f %.1f\n", got[0], got[1])
	// Output: 2.0 1.0
}

// Weight decay leaves biases and norms alone.
func ExampleSplitDecay() {
	weight := nn.NewParam(torch.Ones(torch.Float32, 2, 2), true)
	bias := nn.NewParam(torch.Ones(torch.Float32, 2), true)
	decay, other := optim.SplitDecay([]nn.Named{{Name: "proj.weight", Param: weight}, {Name: "proj.bias", Param: bias}})
	opt, err := optim.NewAdamW(decay, optim.AdamConfig{LR: 2e-5, WeightDecay: 0.1})
	if err != nil {
		panic(err)
	}
	defer opt.Close()
	opt.AddGroup(other, 2e-5, 0)
	for _, g := range opt.Groups() {
		fmt.Println(len(g.Params), g.WeightDecay)
	}
	// Output:
	// 1 0.1
	// 1 0
}
