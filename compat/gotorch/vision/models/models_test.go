package models_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	torch "github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/vision/models"
)

func numel(tensors []torch.Tensor) (n int64) {
	for _, t := range tensors {
		n += t.Torch().Numel()
	}
	return n
}

// The counts are torchvision's.
func TestResnets(t *testing.T) {
	r := models.Resnet18()
	require.EqualValues(t, 11_689_512, numel(r.Parameters()))
	require.Contains(t, r.StateDict(), "ResnetModule.L2.Modules[0].Downsample.Modules[1].RunningVar")
	r.Train(false)
	require.Equal(t, []int64{1, 1000}, r.Forward(torch.RandN([]int64{1, 3, 32, 32}, false)).Shape())

	block := reflect.TypeFor[models.BottleneckModule]()
	small := models.Resnet(block, []int64{1, 1, 1, 1}, 10, false, 1, 8)
	x := torch.RandN([]int64{2, 3, 32, 32}, false)
	small.Forward(x).Sum().Backward()
	require.Equal(t, small.C1.Weight.Shape(), small.C1.Weight.Grad().Shape())
	require.Panics(t, func() { models.Resnet(reflect.TypeFor[int](), []int64{1, 1, 1, 1}, 10, false, 1, 64) })
}

func TestResnet50Parameters(t *testing.T) {
	require.EqualValues(t, 25_557_032, numel(models.Resnet50().Parameters()))
}

func TestMLP(t *testing.T) {
	m := models.MLP()
	y := m.Forward(torch.RandN([]int64{3, 1, 28, 28}, false))
	require.Equal(t, []int64{3, 10}, y.Shape())
	require.Len(t, m.Parameters(), 6)
}
