package nn_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// MLP is a gated feed-forward block.
type MLP struct {
	nn.Hooks
	Gate *nn.Linear `torch:"gate_proj"`
	Up   *nn.Linear `torch:"up_proj"`
	Down *nn.Linear `torch:"down_proj"`
}

func (m *MLP) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	return nn.Run(m.Down, c, nn.Run(m.Gate, c, x).SiLU().Mul(nn.Run(m.Up, c, x)))
}

func newMLP(in, hidden int64) *MLP {
	linear := func(in, out int64) *nn.Linear {
		return &nn.Linear{Weight: nn.NewParam(torch.Full(torch.Float32, 0.5, out, in), true)}
	}
	return &MLP{Gate: linear(in, hidden), Up: linear(in, hidden), Down: linear(hidden, in)}
}

// A module is a struct; its fields' tags give the names on disk.
func ExampleNamedParams() {
	for _, p := range nn.NamedParams(newMLP(2, 3)) {
		fmt.Println(p.Name, p.Param.Shape())
	}
	// Output:
	// gate_proj.weight [3 2]
	// up_proj.weight [3 2]
	// down_proj.weight [2 3]
}

// Run frees a layer's temporaries when the layer ends, and its output with the scope of the call.
func ExampleRun() {
	mlp := newMLP(2, 3)
	mlp.SetCheckpoint(true) // keep no activations, compute them again in backward
	step := torch.NewScope(nil)
	defer step.Close()
	x := step.Own(torch.Ones(torch.Float32, 1, 2))
	y := nn.Run(mlp, &nn.Call{Scope: step, Training: true}, x)
	fmt.Println(y.Shape(), step.Len())
	y.Sum().Backward()
	fmt.Println(mlp.Gate.Weight.In(step).Grad().Shape())
	// Output:
	// [1 2] 2
	// [3 2]
}
