// Package initializer fills tensors with first values. It draws from the process-wide generator, which ManualSeed seeds;
// with the same seed the values are PyTorch's.
package initializer

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/initializer"
	"github.com/wangkuiyi/gotorch"
)

// given is the tensor at a.
func given(op string, a *gotorch.Tensor) *torch.Tensor {
	if a == nil || a.T == nil {
		panic(&torch.Error{Op: op, Kind: torch.ErrArgument, Msg: "there is no tensor to fill: make one with gotorch.Empty"})
	}
	return a.Torch()
}

// ManualSeed seeds the process-wide generator.
func ManualSeed(seed int64) { torch.ManualSeed(seed) }

// Zeros fills a with 0.
func Zeros(a *gotorch.Tensor) { initializer.Zeros(given("Zeros", a)) }

// Ones fills a with 1.
func Ones(a *gotorch.Tensor) { initializer.Ones(given("Ones", a)) }

// Uniform fills a from [low, high).
func Uniform(a *gotorch.Tensor, low, high float64) {
	initializer.Uniform(given("Uniform", a), low, high, nil)
}

// Normal fills a from the normal distribution.
func Normal(a *gotorch.Tensor, mean, std float64) {
	initializer.Normal(given("Normal", a), mean, std, nil)
}

// KaimingUniform fills input from [−b, b) with b = gain · sqrt(3 / fan) (He et al. 2015). fanMode is "fan_in" or "fan_out";
// nonLinearity is the function that follows: "relu", "leaky_relu" with slope a, "tanh", "sigmoid", "linear", "conv2d", ….
func KaimingUniform(input *gotorch.Tensor, a float64, fanMode string,
	nonLinearity string) {
	t := given("KaimingUniform", input)
	o := initializer.KaimingOptions{Nonlinearity: nonLinearity, Param: a}
	switch fanMode {
	case "fan_in":
		o.Mode = initializer.FanIn
	case "fan_out":
		o.Mode = initializer.FanOut
	default:
		panic(&torch.Error{Op: "KaimingUniform", Kind: torch.ErrArgument,
			Msg: fmt.Sprintf("the fan mode %q is neither fan_in nor fan_out", fanMode)})
	}
	initializer.KaimingUniform(t, o, nil)
}

// CalculateFanInAndFanOut counts the connections of a weight (out, in, …): in and out, times the size of the kernel.
func CalculateFanInAndFanOut(input gotorch.Tensor) (int64, int64) {
	return initializer.FanInAndFanOut(input.Torch())
}
