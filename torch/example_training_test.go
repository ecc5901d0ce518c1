package torch_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// Linear regression by hand: autograd gives the gradients, the update is written out.
func Example_linearRegression() {
	data := torch.NewScope(nil)
	defer data.Close()
	g := torch.NewGenerator(1)
	x := data.Own(torch.Randn(g, torch.Float32, 200, 2))
	w := data.Own(torch.FromSlice([]float32{2, -3}, 2, 1))
	y := x.MatMul(w).AddScalar(0.5).Add(data.Own(torch.Randn(g, torch.Float32, 200, 1)).MulScalar(0.01))

	weight := torch.Zeros(torch.Float32, 2, 1).SetRequiresGrad(true) // in no scope: they live through all steps
	bias := torch.Zeros(torch.Float32, 1).SetRequiresGrad(true)
	for range 200 {
		step := torch.NewScope(data)
		loss := x.In(step).MatMul(weight).Add(bias).MSELoss(y, torch.ReduceMean)
		loss.Backward()
		torch.NoGrad(func() {
			for _, p := range []*torch.Tensor{weight, bias} {
				p.AddInPlace(p.In(step).Grad(), -0.1)
				p.SetGrad(nil)
			}
		})
		step.Close()
	}
	fmt.Printf("%.2f %.2f\n", torch.Slice[float32](weight), bias.Item())
	// Output: [2.00 -3.00] 0.50
}

// digits makes images of 8 × 8 points: class k has a bright row k, in noise.
func digits(g *torch.Generator, n int64) (images, labels *torch.Tensor) {
	s := torch.NewScope(nil)
	defer s.Close()
	labels = s.Own(torch.Rand(g, torch.Float32, n)).MulScalar(8).To(torch.Int64)
	rows := s.Own(torch.Eye(torch.Float32, 8))
	images = torch.Embedding(rows, labels).Unsqueeze(2).Expand(n, 8, 8).
		Add(s.Own(torch.Randn(g, torch.Float32, n, 8, 8)).MulScalar(0.5)).Unsqueeze(1)
	return s.Escape(images), s.Escape(labels)
}

// A classifier of small images: a convolution and two linear layers, mini-batches, AdamW, and a test on fresh data.
func Example_classifier() {
	g := torch.NewGenerator(7)
	model := nn.NewSequential(
		nn.NewConv2d(1, 4, []int64{3}, nn.ConvConfig{ConvOptions: functional.ConvOptions{Padding: []int64{1}}}, torch.Float32, torch.CPU),
		nn.ReLU(),
		nn.MaxPool2d([]int64{1, 2}, functional.PoolOptions{}),
		nn.Flatten(),
		nn.NewLinear(4*8*4, 32, true, torch.Float32, torch.CPU),
		nn.ReLU(),
		nn.NewLinear(32, 8, true, torch.Float32, torch.CPU),
	)
	nn.ResetParameters(model, g)
	opt, err := optim.NewAdamW(nn.Params(model), optim.AdamConfig{LR: 1e-2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer opt.Close()

	images, labels := digits(g, 512)
	for range 3 { // epochs
		for i := int64(0); i < 512; i += 64 {
			step := torch.NewScope(nil)
			x, y := images.In(step).Narrow(0, i, 64), labels.In(step).Narrow(0, i, 64)
			logits := nn.Run(model, &nn.Call{Scope: step, Training: true}, x)
			functional.CrossEntropy(logits, y, torch.ReduceMean, functional.ClassOptions{}).Backward()
			opt.Step()
			opt.ZeroGrad()
			step.Close()
		}
	}

	test := torch.NewScope(nil)
	defer test.Close()
	images, labels = digits(g, 256)
	torch.InferenceMode(func() {
		logits := nn.Run(model, &nn.Call{Scope: test}, images.In(test))
		right := logits.Argmax(1).Eq(labels).To(torch.Float32).Mean().Item()
		fmt.Println("more than 95 % right:", right > 0.95)
	})
	// Output: more than 95 % right: true
}

// Hooks look at gradients, and change them, while Backward runs.
func ExampleTensor_RegisterHook() {
	s := torch.NewScope(nil)
	defer s.Close()
	x := s.Own(torch.FromSlice([]float32{1, 2})).SetRequiresGrad(true)
	y := x.MulScalar(3)
	hook := y.RegisterHook(func(grad *torch.Tensor) (*torch.Tensor, error) {
		fmt.Println("gradient of y:", torch.Slice[float32](grad))
		return grad.MulScalar(10), nil // in place of it
	})
	y.Sum().Backward(torch.BackwardOptions{RetainGraph: true})
	fmt.Println("gradient of x:", torch.Slice[float32](x.Grad()))
	hook.Remove()

	_ = y.RegisterHook(func(*torch.Tensor) (*torch.Tensor, error) { return nil, fmt.Errorf("too steep") })
	fmt.Println(torch.Try(func() { y.Sum().Backward() }))
	// Output:
	// gradient of y: [1 1]
	// gradient of x: [30 30]
	// torch: backward: too steep
}

// The result of an operator belongs to the innermost scope of its arguments; Escape lets one tensor outlive its scope.
func ExampleScope() {
	epoch := torch.NewScope(nil)
	defer epoch.Close()
	total := epoch.Own(torch.Zeros(torch.Float32))
	for i := range 3 {
		step := torch.NewScope(epoch)
		loss := step.Own(torch.Full(torch.Float32, float64(i), 4)).Sum()
		total.AddInPlace(loss, 1)
		if i == 2 {
			total = step.Escape(total.Add(loss)) // computed in the step, kept by the epoch
		}
		step.Close()
		fmt.Print(loss.Freed(), " ")
	}
	fmt.Println(total.Item())
	// Output: true true true 20
}

// Autocast computes products in bfloat16 and leaves the weights in float32.
func ExampleAutocast() {
	s := torch.NewScope(nil)
	defer s.Close()
	x, w := s.Own(torch.Ones(torch.Float32, 2, 3)), s.Own(torch.Ones(torch.Float32, 4, 3)).SetRequiresGrad(true)
	var y *torch.Tensor
	torch.Autocast(torch.CPUType, torch.BFloat16, func() { y = x.Linear(w, nil) })
	y.Sum().Backward()
	fmt.Println(y.DType(), w.Grad().DType())
	// Output: bfloat16 float32
}
