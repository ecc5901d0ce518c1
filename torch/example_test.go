package torch_test

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// Operators are methods; a scope frees everything that was computed from its tensors.
func Example() {
	step := torch.NewScope(nil)
	defer step.Close()
	w := step.Own(torch.FromSlice([]float32{1, 2, 3, 4}, 2, 2)).SetRequiresGrad(true)
	x := step.Own(torch.FromSlice([]float32{1, -1}, 1, 2))
	y := x.MatMul(w).Sum()
	y.Backward()
	fmt.Println(y.Item(), torch.Slice[float32](w.Grad()))
	// Output: -4 [1 1 -1 -1]
}

// Try turns the panic of an operator into an error.
func ExampleTry() {
	a, b := torch.Ones(torch.Float32, 2, 3), torch.Ones(torch.Float32, 4, 5)
	err := torch.Try(func() { a.MatMul(b) })
	fmt.Println(errors.Is(err, torch.ErrArgument))
	fmt.Println(err)
	// Output:
	// true
	// torch: matmul: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5) (tensors: [2 3] float32, [4 5] float32)
}

// In binds a tensor that lives longer to a scope, so that what is computed from it dies with the scope.
func ExampleTensor_In() {
	weight := torch.Ones(torch.Float32, 3) // in no scope: a parameter
	defer weight.Free()
	step := torch.NewScope(nil)
	doubled := weight.In(step).MulScalar(2)
	fmt.Println(doubled.Sum().Item())
	step.Close()
	fmt.Println(doubled.Freed(), weight.Freed())
	// Output:
	// 6
	// true false
}

// Call reaches operators that have no method.
func ExampleCall() {
	s := torch.NewScope(nil)
	defer s.Close()
	x := s.Own(torch.FromSlice([]float32{3, 1, 2}))
	r := torch.Call("aten::topk", x, 2)
	fmt.Println(torch.Slice[float32](r[0].(*torch.Tensor)), torch.Slice[int64](r[1].(*torch.Tensor)))
	// Output: [3 2] [0 2]
}

type clippedReLU struct{}

func (clippedReLU) Forward(ctx *torch.FunctionContext, in []*torch.Tensor) []*torch.Tensor {
	ctx.Save(in[0])
	ctx.SetValue(1.0) // anything that is no tensor
	return []*torch.Tensor{in[0].Clamp(0, 1)}
}

func (clippedReLU) Backward(ctx *torch.FunctionContext, grads []*torch.Tensor) ([]*torch.Tensor, error) {
	x, limit := ctx.Saved()[0], ctx.Value().(float64)
	inside := x.GtScalar(0).LogicalAnd(x.LtScalar(limit))
	return []*torch.Tensor{grads[0].Mul(inside)}, nil
}

// A Function has its backward written in Go.
func ExampleApply() {
	s := torch.NewScope(nil)
	defer s.Close()
	x := s.Own(torch.FromSlice([]float32{-1, 0.5, 2})).SetRequiresGrad(true)
	torch.Apply(clippedReLU{}, x)[0].Sum().Backward()
	fmt.Println(torch.Slice[float32](x.Grad()))
	// Output: [0 1 0]
}

// LeakReport says where live tensors were made.
func ExampleLeakReport() {
	torch.TrackLeaks(true)
	defer torch.TrackLeaks(false)
	s := torch.NewScope(nil)
	s.Own(torch.Ones(torch.Float32, 2))
	fmt.Println(torch.LeakReport() != "")
	s.Close()
	fmt.Println(torch.LeakReport() == "")
	// Output:
	// true
	// true
}
