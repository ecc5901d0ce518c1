package gotorch_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	torch "github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn/initializer"

	gofsdp "github.com/gofsdp/gofsdp/torch"
)

// fault is the message of the *Error with which f panics.
func fault(t *testing.T, f func()) string {
	t.Helper()
	err := gofsdp.Try(f)
	require.Error(t, err)
	return err.Error()
}

func TestBridge(t *testing.T) {
	a := torch.Wrap(gofsdp.FromSlice([]float32{1, 2, 3}))
	require.Equal(t, []float32{1, 4, 9}, gofsdp.Slice[float32](a.Mul(a).Torch()))
	require.Contains(t, fault(t, func() { torch.Tensor{}.Dim() }), "its T is nil")
	undefined := torch.Ones([]int64{1}, true).Grad()
	require.NotNil(t, undefined.T)
	require.Contains(t, fault(t, func() { undefined.Item() }), "no Backward has reached")
}

func TestBackwardAndGrad(t *testing.T) {
	x := torch.Full([]int64{2}, 3, true)
	y := x.Mul(x)
	torch.Sum(y).Backward()
	require.Equal(t, " 6\n 6\n[ CPUFloatType{2} ]", x.Grad().String())
	require.Contains(t, fault(t, y.Backward), "scalar outputs")
}

func TestInPlaceOperatorsGiveTheirReceiver(t *testing.T) {
	a, b := torch.Full([]int64{2}, 6, false), torch.Full([]int64{2}, 2, false)
	for _, result := range []torch.Tensor{a.AddI(b, 0.5), a.SubI(b, 2), a.MulI(b), a.DivI(b)} {
		require.Equal(t, a.T, result.T)
	}
	require.Equal(t, []float32{3, 3}, gofsdp.Slice[float32](a.Torch()))
}

func TestIndexAndOptions(t *testing.T) {
	a := torch.NewTensor([][]int64{{1, 2}, {3, 1 << 60}})
	require.Equal(t, int64(1)<<60, a.Index(-1, 1).Item())
	require.Contains(t, fault(t, func() { a.Index(0) }), "1 indices")
	require.Contains(t, fault(t, func() { a.Index(0, 2) }), "out of range")
	require.Contains(t, fault(t, func() { a.Item() }), "needs one element")
	require.Equal(t, []int64{1, 2}, a.Sum(map[string]interface{}{"dim": int64(0), "keepDim": true}).Shape())
	require.Contains(t, fault(t, func() { a.Sum(map[string]interface{}{"dim": "x"}) }), "not an integer")
	require.Contains(t, fault(t, func() { a.Sum(map[string]interface{}{"dim": 0, "keepDim": 1}) }), "not a bool")
	require.Contains(t, fault(t, func() { a.Argmax(nil) }), "not an integer")
	require.Contains(t, fault(t, func() { a.Squeeze(0, 1) }), "one dimension or none")
	require.NotNil(t, torch.Ones([]int64{}, false).Shape())
}

func TestNewTensor(t *testing.T) {
	require.Equal(t, []int64{0, 0}, torch.NewTensor([][]float32{}).Shape())
	require.Equal(t, []int64{2, 1, 2}, torch.NewTensor([][][]bool{{{true, false}}, {{false, true}}}).Shape())
	half := torch.NewTensor([]uint16{0x3f80}, map[string]interface{}{"dtype": torch.BFloat16})
	require.Equal(t, float32(1), half.Item())
	type celsius float64
	require.Equal(t, 21.5, torch.NewTensor([]celsius{21.5}).Item())

	require.Contains(t, fault(t, func() { torch.NewTensor([][]float32{{1, 2}, {3}}) }), "slices of unequal lengths")
	require.Contains(t, fault(t, func() { torch.NewTensor([]int{1}) }), "no tensors of Go's type int")
	require.Contains(t, fault(t, func() { torch.NewTensor(1.5) }), "needs a slice")
	require.Contains(t, fault(t, func() { torch.NewTensor(nil) }), "needs a slice")
	require.Contains(t, fault(t, func() { torch.NewTensor([]float32{1}, map[string]interface{}{"dtype": torch.Double}) }), "do not have the size")
	require.Contains(t, fault(t, func() { torch.NewTensor([]float32{1}, map[string]interface{}{"dtype": 7}) }), "not an int8")
}

func TestFromBlob(t *testing.T) {
	data := [2][2]float32{{1, 2}, {3, 4}}
	a := torch.FromBlob(unsafe.Pointer(&data), torch.Float, []int64{2, 2})
	data[1][1] = 9 // not seen: FromBlob copies
	require.Equal(t, float32(4), a.Index(1, 1).Item())
	require.Contains(t, fault(t, func() { torch.FromBlob(nil, torch.Float, []int64{2}) }), "no data")
	require.Contains(t, fault(t, func() { torch.FromBlob(unsafe.Pointer(&data), torch.QInt8, []int64{2}) }), "cannot be made from memory")
	require.Contains(t, fault(t, func() { torch.FromBlob(unsafe.Pointer(&data), torch.Float, []int64{-1}) }), "shape [-1]")
}

func TestMustNil(t *testing.T) {
	torch.MustNil(nil)
	message := []byte("it went wrong\x00")
	require.PanicsWithValue(t, "it went wrong", func() { torch.MustNil(unsafe.Pointer(&message[0])) })
}

// Tensors that the program drops are freed by GC, and those that it keeps stay.
func TestGCFreesWhatIsDropped(t *testing.T) {
	torch.GC()
	kept := torch.Ones([]int64{10}, false)
	before := gofsdp.MemoryStats().LiveTensors
	for range 1000 {
		torch.Ones([]int64{10}, false).Mul(kept)
	}
	torch.FinishGC()
	torch.FinishGC()
	require.LessOrEqual(t, gofsdp.MemoryStats().LiveTensors, before+10)
	require.Equal(t, float32(10), kept.Sum().Item())
}

func TestDevices(t *testing.T) {
	require.Equal(t, gofsdp.CPU, torch.NewDevice("cpu").T)
	require.Equal(t, gofsdp.CUDA(3), torch.NewDevice("cuda:3").T)
	require.Equal(t, gofsdp.Device{Type: gofsdp.CUDAType, Index: -1}, torch.NewDevice("cuda").T)
	for _, name := range []string{"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:1"} {
		require.Contains(t, fault(t, func() { torch.NewDevice(name) }), "NewDevice", name)
	}
	x := torch.Ones([]int64{2}, false)
	require.Contains(t, fault(t, func() { x.CUDA(torch.NewDevice("cpu"), false) }), "must be a CUDA device")
	require.Contains(t, fault(t, torch.CUDAStream{}.Synchronize), "the stream is empty")
	gpu := torch.NewDevice("cuda")
	if !torch.IsCUDAAvailable() {
		require.False(t, torch.IsCUDNNAvailable())
		require.Equal(t, x.T, x.PinMemory().T)
		for _, f := range []func(){
			func() { x.CUDA(gpu, true) }, func() { torch.NewCUDAStream(gpu) }, func() { torch.GetCurrentCUDAStream(gpu) },
		} {
			require.Contains(t, fault(t, f), "there is no CUDA device")
		}
		require.Error(t, gofsdp.Try(func() { x.To(gpu) }))
		return
	}
	stream := torch.NewCUDAStream(gpu)
	torch.SetCurrentCUDAStream(stream)
	y := x.PinMemory().CUDA(gpu, true)
	require.True(t, stream.Query())
	require.Equal(t, " 1\n 1\n[ CUDAFloatType{2} ]", y.String())
}

func TestManualSeed(t *testing.T) {
	initializer.ManualSeed(7)
	a := torch.RandN([]int64{3}, false)
	initializer.ManualSeed(7)
	require.True(t, torch.Equal(a, torch.RandN([]int64{3}, false)))
}
