package torch

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// procStatus reads a number of /proc/self/status, e.g. VmRSS in kB.
func procStatus(t *testing.T, key string) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatalf("no %s in /proc/self/status", key)
	return 0
}

// settle waits until the collector has freed what earlier tests dropped.
func settle() {
	runtime.GC()
	for calm, last := 0, int64(-1); calm < 3; {
		time.Sleep(2 * time.Millisecond)
		if now := MemoryStats().LiveTensors; now == last {
			calm++
		} else {
			calm, last = 0, now
		}
	}
}

func TestPeakEqualsHandCounts(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	settle()
	ResetPeak()
	before := MemoryStats()
	s := NewScope(nil)
	defer s.Close()
	a := s.Own(Empty(Float32, 1000)) // 4000
	b := s.Own(Empty(Uint8, 123))
	c := s.Own(Empty(Float64, 1<<20)) // 8 MiB, cached when freed
	c.Free()
	d := s.Own(Empty(Float64, 1<<20)) // the same block again
	s.Own(Empty(Float64, 1<<18))
	now := MemoryStats()
	const live = 4000 + 123 + 8<<20 + 2<<20
	require.EqualValues(t, live, now.LiveBytes-before.LiveBytes)
	require.EqualValues(t, live, now.PeakBytes-before.LiveBytes)
	require.EqualValues(t, 5, now.Allocations-before.Allocations)
	require.EqualValues(t, 4, now.LiveTensors-before.LiveTensors)
	d.Free()
	require.EqualValues(t, live, MemoryStats().PeakBytes-before.LiveBytes)
	ResetPeak()
	require.EqualValues(t, live-8<<20, MemoryStats().PeakBytes-before.LiveBytes)
	a.ResizeStorage(0)
	b.ResizeStorage(0)
	require.EqualValues(t, 2<<20, MemoryStats().LiveBytes-before.LiveBytes)
	empty := s.Own(Empty(Float32, 0, 5))
	require.EqualValues(t, 2<<20, MemoryStats().LiveBytes-before.LiveBytes)
	require.Empty(t, Slice[float32](empty))
	require.Empty(t, empty.Bytes())
}

func TestAllocationsAreAligned(t *testing.T) {
	s := NewScope(nil)
	defer s.Close()
	for _, n := range []int64{1, 63, 64, 65, 4000, 256 << 10, 1 << 20, 5 << 20} {
		for range 3 {
			x := s.Own(Empty(Uint8, n))
			x.WithBytes(func(b []byte) {
				require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%64, n)
				b[0], b[n-1] = 1, 1
			})
			x.Free()
		}
	}
}

func TestFreedMemoryGoesBackToTheSystem(t *testing.T) {
	settle()
	TrimMemory()
	before := procStatus(t, "VmRSS")
	x := Ones(Float32, 25<<20) // 100 MiB, more than the cache takes
	require.Greater(t, procStatus(t, "VmRSS"), before+90<<10)
	x.Free()
	require.Less(t, procStatus(t, "VmRSS"), before+10<<10)
	var list []*Tensor
	for range 100 {
		list = append(list, Ones(Float32, 1<<18)) // 1 MiB each: some stay cached
	}
	for _, x := range list {
		x.Free()
	}
	require.Less(t, procStatus(t, "VmRSS"), before+60<<10)
	TrimMemory()
	require.Less(t, procStatus(t, "VmRSS"), before+10<<10)
}

// Sizes that are not used any more must not keep the cache full.
func TestCacheForgetsOldSizes(t *testing.T) {
	for range 50 {
		defer Ones(Float32, 1<<18).Free()
	}
	for i := int64(0); i < 100; i++ {
		Empty(Uint8, 1<<20+64*i).Free()
	}
	address := func() (p uintptr) {
		x := Empty(Float32, 1<<20)
		defer x.Free()
		x.WithBytes(func(b []byte) { p = uintptr(unsafe.Pointer(&b[0])) })
		return p
	}
	first := address()
	require.Equal(t, first, address(), "a block of the last size is found again")
}

func TestAllocatorFromManyGoroutines(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	settle()
	before := MemoryStats().LiveBytes
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 200 {
				n := int64(1) << (10 + (g+i)%10)
				x := Empty(Uint8, n)
				x.WithBytes(func(b []byte) {
					for j := range b {
						b[j] = byte(g)
					}
					for j := range b {
						if b[j] != byte(g) {
							t.Errorf("two tensors share memory")
							return
						}
					}
				})
				x.Free()
			}
		})
	}
	wg.Wait()
	require.Equal(t, before, MemoryStats().LiveBytes)
}

func TestExplicitFreesDoNotTriggerCollections(t *testing.T) {
	settle()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		Empty(Uint8, 64<<20).Free() // 6.4 GiB in all
	}
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.NumForcedGC, before.NumForcedGC)
}

func TestLeakReport(t *testing.T) {
	TrackLeaks(true)
	defer TrackLeaks(false)
	require.Empty(t, LeakReport())
	s := NewScope(nil)
	x := s.Own(Ones(Float32, 2))
	for range 3 {
		x.MulScalar(2)
	}
	report := LeakReport()
	require.Regexp(t, `^ +3  .*TestLeakReport .*memory_test.go:\d+\n +1  .*TestLeakReport .*memory_test.go:\d+\n$`, report)
	s.Close()
	require.Empty(t, LeakReport())
}

func TestScopeMisuse(t *testing.T) {
	s := NewScope(nil)
	x := s.Own(Ones(Float32, 2))
	y := Ones(Float32, 2)
	defer y.Free()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	settle()
	s.Close()
	s.Close()
	before := MemoryStats().LiveTensors
	require.ErrorIs(t, Try(func() { y.In(s) }), ErrFreed)
	require.ErrorIs(t, Try(func() { s.Own(y) }), ErrFreed)
	require.ErrorIs(t, Try(func() { x.Sum() }), ErrFreed)
	require.ErrorIs(t, Try(func() { x.In(nil) }), ErrFreed)
	require.ErrorIs(t, Try(func() { x.Shape() }), ErrFreed)
	require.Equal(t, "Tensor(freed)", x.String())
	require.Equal(t, before, MemoryStats().LiveTensors)
	require.False(t, y.Freed())
	x.Free()
	// A child may outlive its parent; what it holds stays usable.
	parent := NewScope(nil)
	child := NewScope(parent)
	z := child.Own(Ones(Float32, 2))
	parent.Close()
	require.Equal(t, 2.0, z.Sum().Item())
	require.ErrorIs(t, Try(func() { child.Escape(z) }), ErrFreed)
	child.Close()
}
