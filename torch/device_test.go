package torch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// gpuError checks what a call for a GPU gives without one; on a machine with a GPU the same calls must succeed.
func gpuError(t *testing.T, err error) {
	t.Helper()
	if DeviceCount(CUDAType) > 0 {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "no CUDA device: ")
}

func TestMissingDevicesAreNamed(t *testing.T) {
	gpu := CUDA(0)
	gpuError(t, gpu.Check())
	gpuError(t, Try(func() { EmptyOn(gpu, Float32, 2).Free() }))
	s := NewScope(nil)
	defer s.Close()
	x := s.Own(Ones(Float32, 2))
	gpuError(t, Try(func() { x.ToDevice(gpu) }))
	gpuError(t, Try(func() { x.ToDeviceAsync(gpu) }))
	gpuError(t, Try(func() { x.PinMemory() }))
	gpuError(t, Try(func() { OnDevice(gpu, func() {}) }))
	gpuError(t, Try(func() { NewGeneratorOn(gpu, 1) }))
	gpuError(t, Try(func() { DefaultGenerator(gpu) }))
	gpuError(t, Synchronize(gpu))
	gpuError(t, EmptyCache(CUDAType))
	gpuError(t, ResetDevicePeak(gpu))
	for _, f := range []func() error{
		func() error { _, err := DeviceMemoryStats(gpu); return err },
		func() error { _, _, err := DeviceMemoryInfo(gpu); return err },
		func() error { _, err := CurrentDevice(CUDAType); return err },
		func() error { _, err := NewStream(gpu, 0); return err },
		func() error { _, err := CurrentStream(gpu); return err },
		func() error { _, err := DefaultStream(gpu); return err },
		func() error { _, err := NewEvent(CUDAType, EventOptions{}); return err },
	} {
		gpuError(t, f())
	}
	for _, d := range []Device{CUDA(99), CUDA(-2), CUDA(256), {Type: 77}, {Type: -1}, {Type: 20}} {
		err := Try(func() { EmptyOn(d, Float32, 2) })
		require.ErrorIs(t, err, ErrNoDevice, "%v", d)
		require.Error(t, d.Check(), "%v", d)
	}
}

func TestDevicesWithoutStreams(t *testing.T) {
	for _, d := range []Device{CPU, Meta} {
		_, err := NewStream(d, 0)
		require.ErrorContains(t, err, "has no streams")
		_, err = NewEvent(d.Type, EventOptions{})
		require.ErrorContains(t, err, "has no streams")
		_, err = DeviceMemoryStats(d)
		require.Error(t, err)
		require.NoError(t, d.Check())
		require.Equal(t, 1, DeviceCount(d.Type))
	}
	require.NoError(t, Synchronize(CPU))
	require.NoError(t, EmptyCache(CPUType))
	ran := false
	OnDevice(CPU, func() { ran = true })
	require.True(t, ran)
	d, err := CurrentDevice(CPUType)
	require.NoError(t, err)
	require.Equal(t, CPU, d)

	var none Stream // the zero value is a stream of the CPU, which has none
	_, err = none.Done()
	require.Error(t, err)
	require.Error(t, none.Synchronize())
	require.Error(t, none.Wait(none))
	_, err = none.Native()
	require.Error(t, err)
	require.Error(t, Try(func() { Ones(Float32, 1).RecordStream(none) }))
	for _, e := range []*Event{nil, {}} {
		require.ErrorIs(t, e.Record(none), ErrArgument)
		require.ErrorIs(t, e.Synchronize(), ErrArgument)
		require.ErrorIs(t, none.WaitEvent(e), ErrArgument)
		_, err = e.Done()
		require.ErrorIs(t, err, ErrArgument)
		_, err = e.Elapsed(e)
		require.ErrorIs(t, err, ErrArgument)
		e.Free()
	}
	require.False(t, Ones(Float32, 1).IsPinned())
}

func TestDeviceNames(t *testing.T) {
	for d, want := range map[Device]string{CPU: "cpu", Meta: "meta", CUDA(2): "cuda:2", CUDA(-1): "cuda", {Type: 9}: "device type 9:0"} {
		require.Equal(t, want, d.String())
	}
}

func TestMetaTensors(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	settle()
	before := MemoryStats().LiveBytes
	x := s.Own(EmptyOn(Meta, BFloat16, 1<<20, 1<<20)) // 2 TiB of nothing
	y := x.MatMul(x.T()).MulScalar(2)
	require.Equal(t, []int64{1 << 20, 1 << 20}, y.Shape())
	require.LessOrEqual(t, MemoryStats().LiveBytes, before)
	require.ErrorIs(t, Try(func() { Slice[float32](y.To(Float32)) }), ErrArgument)
	require.ErrorIs(t, Try(func() { y.Sum().Item() }), ErrArgument)
	require.ErrorIs(t, Try(func() { x.WithBytes(func([]byte) {}) }), ErrArgument)
	require.ErrorIs(t, Try(func() { s.Own(Ones(Float32, 2)).Add(s.Own(EmptyOn(Meta, Float32, 2))) }), ErrArgument, "two devices")
}

func TestGenerators(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	draw := func(g *Generator) []float32 { return Slice[float32](s.Own(Randn(g, Float32, 4))) }
	g := NewGeneratorOn(CPU, 7)
	require.EqualValues(t, 7, g.InitialSeed())
	state := s.Own(g.State())
	first := draw(g)
	require.NotEqual(t, first, draw(g))
	g.SetState(state)
	require.Equal(t, first, draw(g))
	g.Seed(7)
	require.Equal(t, first, draw(g))

	// The process-wide generator, by its state and by its seed.
	process := DefaultGenerator(CPU)
	kept := s.Own(process.State())
	defer process.SetState(kept)
	ManualSeed(7)
	require.EqualValues(t, 7, process.InitialSeed())
	require.Equal(t, first, draw(nil))
	ManualSeed(7)
	require.Equal(t, first, draw(process), "it is the one that nil stands for")

	require.ErrorIs(t, Try(func() { g.SetState(s.Own(Ones(Uint8, 3))) }), ErrArgument)
	require.ErrorIs(t, Try(func() { g.SetState(s.Own(Ones(Float32, 3))) }), ErrArgument)
	for _, none := range []*Generator{nil, {}} {
		require.ErrorIs(t, Try(func() { none.Seed(1) }), ErrArgument)
		require.ErrorIs(t, Try(func() { none.State() }), ErrArgument)
		require.ErrorIs(t, Try(func() { none.SetState(state) }), ErrArgument)
		require.ErrorIs(t, Try(func() { none.InitialSeed() }), ErrArgument)
	}
	require.ErrorIs(t, Try(func() { Randn(&Generator{}, Float32, 2) }), ErrArgument)
}

func TestMemoryLimitRunsTheCollectorFirst(t *testing.T) {
	settle()
	TrimMemory()
	const mb = 1 << 20
	live := MemoryStats().LiveBytes
	defer SetMemoryLimit(SetMemoryLimit(live + 40*mb))
	for range 100 { // garbage that only the collector can free
		Empty(Uint8, 8*mb)
	}
	err := Try(func() { Empty(Uint8, 50*mb) })
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.ErrorContains(t, err, "empty")
	require.ErrorContains(t, err, "the limit is")
	require.ErrorIs(t, Try(func() { Empty(Uint8, 1<<62) }), ErrOutOfMemory)
	held := NewScope(nil)
	defer held.Close()
	for range 4 {
		held.Own(Empty(Uint8, 8*mb)).Zero()
	}
	require.ErrorIs(t, Try(func() { held.Own(Empty(Uint8, 16*mb)) }), ErrOutOfMemory, "what is in use is not taken away")
	require.ErrorIs(t, Try(func() { SetMemoryLimit(-1) }), ErrArgument)
}

// The road that the CUDA allocator takes: libtorch's registry, the callback, Go's collector.
func TestCUDAFreeMemoryCallbackReachesTheCollector(t *testing.T) {
	settle()
	before := MemoryStats().LiveTensors
	for range 50 {
		Empty(Uint8, 1000)
	}
	freed, err := capi.TestLowMemory()
	require.NoError(t, err)
	require.True(t, freed)
	require.Less(t, MemoryStats().LiveTensors, before+10)
	freed, err = capi.TestLowMemory()
	require.NoError(t, err)
	require.False(t, freed, "nothing is left")
}

func TestStorageArguments(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	x, y := s.Own(FromSlice([]float32{1, 2, 3, 4})), s.Own(Empty(Float32, 0))
	require.EqualValues(t, 16, x.Storage().Bytes())
	o := &Op{Name: "aten::set_", Overload: "source_Storage_storage_offset", Args: "self,source,storage_offset,size,stride"}
	o.Begin().T(y).Storage(x.Storage()).Int(1).Ints([]int64{2}).Ints([]int64{2}).Drop()
	require.Equal(t, []float32{2, 4}, Slice[float32](y))
	require.ErrorIs(t, Try(func() { o.Begin().T(y).Storage(Storage{}).Int(0).Ints(nil).Ints(nil).Drop() }), ErrArgument)
	record := &Op{Name: "aten::record_stream", Args: "self,s"}
	require.Error(t, Try(func() { record.Begin().T(x).Stream(Stream{}).Drop() }))
}
