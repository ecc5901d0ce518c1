package gotorch_test

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"math/rand/v2"

	torch "github.com/wangkuiyi/gotorch"
	F "github.com/wangkuiyi/gotorch/nn/functional"
	"github.com/wangkuiyi/gotorch/nn/initializer"
	"github.com/wangkuiyi/gotorch/vision/models"
)

// digits draws a batch of images: a bright row for each class, in noise.
func digits(r *rand.Rand, batch int) (images, labels torch.Tensor) {
	x, y := make([][]float32, batch), make([]int64, batch)
	for i := range x {
		x[i] = make([]float32, 28*28)
		for j := range x[i] {
			x[i][j] = float32(r.NormFloat64())
		}
		y[i] = r.Int64N(10)
		for j := range 28 {
			x[i][28*(2*int(y[i])+4)+j] += 2
		}
	}
	return torch.NewTensor(x), torch.NewTensor(y)
}

// An MNIST-style program: it trains, saves the model, loads it again and tests it.
func Example() {
	initializer.ManualSeed(1)
	r := rand.New(rand.NewPCG(1, 1))
	net := models.MLP()
	opt := torch.SGD(0.05, 0.5, 0, 0, false)
	opt.AddParameters(net.Parameters())
	for range 40 {
		torch.GC()
		images, labels := digits(r, 64)
		opt.ZeroGrad()
		loss := F.NllLoss(net.Forward(images), labels, torch.Tensor{}, -100, "mean")
		loss.Backward()
		opt.Step()
	}
	torch.FinishGC()

	var file bytes.Buffer
	if err := gob.NewEncoder(&file).Encode(net.StateDict()); err != nil {
		panic(err)
	}
	states := map[string]torch.Tensor{}
	if err := gob.NewDecoder(&file).Decode(&states); err != nil {
		panic(err)
	}
	net = models.MLP()
	if err := net.SetStateDict(states); err != nil {
		panic(err)
	}
	images, labels := digits(r, 500)
	right := net.Forward(images).Argmax(1).Eq(labels).Sum().Item().(int64)
	fmt.Println("more than 95 % right:", right > 475)
	// Output:
	// more than 95 % right: true
}
