//go:build gpu

package torch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What only a GPU can show. scripts/gpu-check runs these; they fail where there is no GPU.

func TestGPUOperatorsMatchTheCPU(t *testing.T) {
	require.NoError(t, CUDA(0).Check())
	s := NewScope(nil)
	defer s.Close()
	for _, dtype := range []DType{Float64, Float32, BFloat16, Float16} {
		x := s.Own(Randn(NewGenerator(1), Float64, 64, 48)).To(dtype)
		w := s.Own(Randn(NewGenerator(2), Float64, 32, 48)).To(dtype)
		gx, gw := x.ToDevice(CUDA(0)), w.ToDevice(CUDA(0))
		require.Equal(t, CUDA(0), gx.Device())
		want, got := x.Linear(w, nil).To(Float64), gx.Linear(gw, nil).ToDevice(CPU).To(Float64)
		require.True(t, got.AllClose(want, 2e-2, 2e-1), dtype.String())
		require.Equal(t, x.Bytes(), gx.Bytes(), "a copy there and back changes no bit")
	}
}

func TestGPUBackwardAndHooks(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(FromSlice([]float64{1, 2, 3})).ToDevice(CUDA(0)).SetRequiresGrad(true)
	calls := 0
	y := Apply(square{}, x)[0]
	y.RegisterHook(func(g *Tensor) (*Tensor, error) { calls++; return g.MulScalar(10), nil })
	g := Grad([]*Tensor{y.Sum()}, []*Tensor{x}, GradOptions{CreateGraph: true})[0]
	g.Sum().Backward()
	require.Equal(t, 1, calls)
	require.Equal(t, []float64{20, 40, 60}, Slice[float64](g))
}

func TestGPUStreamsAndEvents(t *testing.T) {
	stream, err := NewStream(CUDA(0), 0)
	require.NoError(t, err)
	plain, err := DefaultStream(CUDA(0))
	require.NoError(t, err)
	native, err := stream.Native()
	require.NoError(t, err)
	require.NotZero(t, native)
	first, err := NewEvent(CUDAType, EventOptions{Timing: true})
	require.NoError(t, err)
	last, err := NewEvent(CUDAType, EventOptions{Timing: true})
	require.NoError(t, err)
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Randn(NewGenerator(1), Float32, 2048, 2048)).ToDevice(CUDA(0))
	require.NoError(t, stream.Wait(plain))
	var y *Tensor
	OnStream(stream, func() {
		now, err := CurrentStream(CUDA(0))
		require.NoError(t, err)
		require.Equal(t, stream, now)
		require.NoError(t, first.Record(stream))
		y = x
		for range 20 {
			y = y.MM(x).MulScalar(0.01)
		}
		x.RecordStream(stream)
		require.NoError(t, last.Record(stream))
	})
	require.NoError(t, plain.WaitEvent(last))
	require.NoError(t, last.Synchronize())
	done, err := last.Done()
	require.NoError(t, err)
	require.True(t, done)
	took, err := first.Elapsed(last)
	require.NoError(t, err)
	require.Greater(t, took, 10*time.Microsecond)
	require.NoError(t, Synchronize(CUDA(0)))
	now, err := CurrentStream(CUDA(0))
	require.NoError(t, err)
	require.Equal(t, plain, now, "OnStream put the stream back")
}

func TestGPUPinnedMemory(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Randn(NewGenerator(1), Float32, 1<<20)).PinMemory()
	require.True(t, x.IsPinned())
	back := s.Own(Empty(Float32, 1<<20)).PinMemory()
	back.CopyAsync(x.ToDeviceAsync(CUDA(0)))
	require.NoError(t, Synchronize(CUDA(0)))
	require.True(t, back.Equal(x))
}

func TestGPUMemory(t *testing.T) {
	gpu := CUDA(0)
	settle()
	require.NoError(t, EmptyCache(CUDAType))
	require.NoError(t, ResetDevicePeak(gpu))
	before, err := DeviceMemoryStats(gpu)
	require.NoError(t, err)
	x := EmptyOn(gpu, Uint8, 64<<20)
	now, err := DeviceMemoryStats(gpu)
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, now.Bytes-before.Bytes)
	x.Free()
	now, err = DeviceMemoryStats(gpu)
	require.NoError(t, err)
	require.Equal(t, before.Bytes, now.Bytes)
	require.GreaterOrEqual(t, now.PeakBytes, before.Bytes+64<<20)
	require.NoError(t, EmptyCache(CUDAType))

	// Garbage that fills the device: the allocator asks the collector before it gives up.
	free, total, err := DeviceMemoryInfo(gpu)
	require.NoError(t, err)
	require.LessOrEqual(t, free, total)
	block := free / 8
	for range 24 {
		EmptyOn(gpu, Uint8, block)
	}
	require.ErrorIs(t, Try(func() { EmptyOn(gpu, Uint8, 2*total) }), ErrOutOfMemory)
}

func TestGPUGenerators(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(EmptyOn(CUDA(0), Float32, 100))
	g := NewGeneratorOn(CUDA(0), 5)
	state := g.State()
	first := Slice[float32](x.NormalInPlace(0, 1, g))
	g.SetState(state)
	require.Equal(t, first, Slice[float32](x.NormalInPlace(0, 1, g)))
	ManualSeed(5)
	require.Equal(t, first, Slice[float32](x.NormalInPlace(0, 1, DefaultGenerator(CUDA(0)))))
	require.ErrorIs(t, Try(func() { x.NormalInPlace(0, 1, NewGenerator(1)) }), ErrArgument, "a generator of another device")
}

func TestGPUFaults(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(EmptyOn(CUDA(0), Float32, 2))
	require.ErrorIs(t, Try(func() { x.Add(s.Own(Ones(Float32, 2))) }), ErrArgument, "two devices")
	require.ErrorIs(t, Try(func() { x.WithBytes(func([]byte) {}) }), ErrArgument)
	require.ErrorIs(t, CUDA(DeviceCount(CUDAType)).Check(), ErrNoDevice)
}
