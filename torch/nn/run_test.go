package nn

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

// block is w2·tanh(w1·x), with a temporary that nobody uses.
type block struct {
	Hooks
	W1, W2 *Param
	calls  int
	seen   *torch.Tensor
}

func newBlock(n int64, seed int64) *block {
	g := torch.NewGenerator(seed)
	return &block{W1: NewParam(torch.Randn(g, torch.Float64, n, n), true), W2: NewParam(torch.Randn(g, torch.Float64, n, n), true)}
}

func (b *block) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	b.calls++
	b.seen = x.MatMul(b.W1.In(c.Scope))
	return b.seen.Tanh().MatMul(b.W2.In(c.Scope))
}

func TestRunFreesTemporariesAndHandsOutputsOut(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	b := newBlock(3, 1)
	x := s.Own(torch.Ones(torch.Float64, 2, 3))
	y := Run(b, &Call{Scope: s}, x)
	require.Same(t, s, y.Scope())
	require.True(t, b.seen.Freed())
	require.Equal(t, 2, s.Len())
	require.Equal(t, []int64{2, 3}, y.Shape())
}

type batch struct {
	X      *torch.Tensor
	Masks  []*torch.Tensor
	Pair   [2]*torch.Tensor
	Inner  *struct{ Y *torch.Tensor }
	Absent *torch.Tensor
	Note   string
	Cache  *cache
	hidden int
}

// cache holds no tensors that a layer could see: it is shared, not copied.
type cache struct{ Length int }

type structLayer struct {
	Hooks
	check func(c *Call, in batch)
}

func (l *structLayer) Forward(c *Call, in batch) *batch {
	l.check(c, in)
	in.Cache.Length++
	in.X = in.X.MulScalar(2)
	return &in
}

func TestRunBindsTensorsInStructs(t *testing.T) {
	outer := torch.NewScope(nil)
	defer outer.Close()
	other := torch.NewScope(nil) // inputs may come from anywhere
	defer other.Close()
	one := func(s *torch.Scope) *torch.Tensor { return s.Own(torch.Ones(torch.Float32, 1)) }
	in := batch{X: one(outer), Masks: []*torch.Tensor{one(other), nil}, Pair: [2]*torch.Tensor{one(other), one(outer)},
		Inner: &struct{ Y *torch.Tensor }{one(other)}, Note: "kept", Cache: &cache{}, hidden: 3}
	l := &structLayer{check: func(c *Call, got batch) {
		for _, x := range []*torch.Tensor{got.X, got.Masks[0], got.Pair[0], got.Pair[1], got.Inner.Y} {
			require.Same(t, c.Scope, x.Scope())
		}
		require.Nil(t, got.Masks[1])
		require.Nil(t, got.Absent)
		require.Equal(t, "kept", got.Note)
		require.Equal(t, 3, got.hidden)
		require.Same(t, in.Cache, got.Cache)
	}}
	out := Run(l, &Call{Scope: outer}, in)
	require.Same(t, outer, out.X.Scope())
	require.Same(t, outer, out.Inner.Y.Scope())
	require.Equal(t, 2.0, out.X.Item())
	require.Equal(t, 1, in.Cache.Length)
	require.Same(t, other, in.Inner.Y.Scope(), "the caller's struct does not change")
}

type recorder struct {
	name string
	log  *[]string
	add  float64
}

func (r *recorder) BeforeForward(c *Call, in []*torch.Tensor) []*torch.Tensor {
	*r.log = append(*r.log, fmt.Sprintf("before %s %d", r.name, len(in)))
	return []*torch.Tensor{in[0].AddScalar(r.add)}
}

func (r *recorder) AfterForward(c *Call, out []*torch.Tensor) []*torch.Tensor {
	*r.log = append(*r.log, "after "+r.name)
	return out
}

type identityLayer struct{ Hooks }

func (*identityLayer) Forward(c *Call, x *torch.Tensor) *torch.Tensor { return x }

func TestHooksOrderAndReplacement(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	var log []string
	l := &identityLayer{}
	a, b := &recorder{"a", &log, 1}, &recorder{"b", &log, 10}
	l.AddHook(a)
	l.AddHook(b)
	x := s.Own(torch.Zeros(torch.Float32, 1))
	require.Equal(t, 11.0, Run(l, &Call{Scope: s}, x).Item())
	require.Equal(t, []string{"before a 1", "before b 1", "after b", "after a"}, log)
	log = nil
	l.RemoveHook(a)
	require.Equal(t, 10.0, Run(l, &Call{Scope: s}, x).Item())
	require.Equal(t, []string{"before b 1", "after b"}, log)
}

type greedy struct{}

func (greedy) BeforeForward(_ *Call, in []*torch.Tensor) []*torch.Tensor { return nil }
func (greedy) AfterForward(_ *Call, out []*torch.Tensor) []*torch.Tensor { return out }

func TestHookThatLosesTensorsIsAnError(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	l := &identityLayer{}
	l.AddHook(greedy{})
	x := s.Own(torch.Zeros(torch.Float32, 1))
	require.ErrorContains(t, torch.Try(func() { Run(l, &Call{Scope: s}, x) }), "0 tensors in place of 1")
	require.Equal(t, 1, s.Len())
}

// settle waits until the collector has freed what earlier tests dropped.
func settle() {
	runtime.GC()
	for calm, last := 0, int64(-1); calm < 3; {
		time.Sleep(2 * time.Millisecond)
		if now := torch.MemoryStats().LiveTensors; now == last {
			calm++
		} else {
			calm, last = 0, now
		}
	}
}

// steps runs f many times with the collector off and expects that nothing stays.
func steps(t *testing.T, n int, f func()) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	f()
	settle()
	torch.TrackLeaks(true)
	defer torch.TrackLeaks(false)
	before := torch.MemoryStats()
	for range n {
		f()
	}
	after := torch.MemoryStats()
	require.Equal(t, before.LiveTensors, after.LiveTensors, torch.LeakReport())
	require.Equal(t, before.LiveBytes, after.LiveBytes)
}

func TestDropout(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	x := s.Own(torch.Ones(torch.Float32, 100, 100))
	d, err := NewDropout(0.25)
	require.NoError(t, err)
	require.Equal(t, 10000.0, Run(d, &Call{Scope: s}, x).Sum().Item())
	y := Run(d, &Call{Scope: s, Training: true, Generator: torch.NewGenerator(3)}, x)
	require.InDelta(t, 10000, y.Sum().Item(), 300)
	require.InDelta(t, 1/0.75, y.Max().Item(), 1e-6)
	torch.ManualSeed(3)
	want := torch.CallOne("aten::dropout", x, 0.25, true)
	require.True(t, want.Equal(y), "PyTorch's mask")
	all := &Dropout{P: 1}
	require.Zero(t, Run(all, &Call{Scope: s, Training: true}, x).Sum().Item())
	_, err = NewDropout(1.5)
	require.ErrorContains(t, err, "1.5")
}
