package nn

import (
	"errors"
	"testing"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

// grads runs f's loss backward and returns the gradients of the model's parameters, which it clears.
func gradsOf(t *testing.T, model any, loss func(c *Call) *torch.Tensor, seed int64) [][]float64 {
	t.Helper()
	s := torch.NewScope(nil)
	defer s.Close()
	loss(&Call{Scope: s, Training: true, Generator: torch.NewGenerator(seed)}).Backward()
	var list [][]float64
	for _, p := range Params(model) {
		g := p.In(s).Grad()
		if g == nil {
			list = append(list, nil)
			continue
		}
		list = append(list, torch.Slice[float64](g))
		p.Tensor().SetGrad(nil)
	}
	return list
}

func input3(s *torch.Scope) *torch.Tensor {
	return s.Own(torch.FromSlice([]float64{1, -2, 3, 0.5, 2, -1}, 2, 3))
}

type stack struct {
	Hooks
	Blocks []*block
	Drop   *Dropout
	Head   *Param
}

func newStack(p float64) *stack {
	return &stack{Blocks: []*block{newBlock(3, 1), newBlock(3, 2)}, Drop: &Dropout{P: p},
		Head: NewParam(torch.Randn(torch.NewGenerator(9), torch.Float64, 3, 3), true)}
}

func (m *stack) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	for _, b := range m.Blocks {
		x = x.Add(Run(m.Drop, c, Run(b, c, x)))
	}
	return x.Exp().MatMul(m.Head.In(c.Scope))
}

func (m *stack) loss(c *Call) *torch.Tensor {
	y := Run(m, c, input3(c.Scope).MulScalar(0.1))
	return y.Mul(y).Sum()
}

func TestParityCheckpointedGradientsAreBitEqual(t *testing.T) {
	m := newStack(0.4)
	want := gradsOf(t, m, m.loss, 7)
	for name, set := range map[string]func(on bool){
		"whole":        func(on bool) { m.SetCheckpoint(on) },
		"inner":        func(on bool) { m.Blocks[0].SetCheckpoint(on); m.Blocks[1].SetCheckpoint(on) },
		"with dropout": func(on bool) { m.Drop.SetCheckpoint(on) },
		"nested": func(on bool) {
			m.SetCheckpoint(on)
			m.Blocks[0].SetCheckpoint(on)
			m.Blocks[1].SetCheckpoint(on)
			m.Drop.SetCheckpoint(on)
		},
	} {
		t.Run(name, func(t *testing.T) {
			set(true)
			defer set(false)
			require.Equal(t, want, gradsOf(t, m, m.loss, 7))
			steps(t, 200, func() { gradsOf(t, m, m.loss, 7) })
		})
	}
}

func TestGeneratorGoesOnAfterRecomputation(t *testing.T) {
	draw := func(checkpoint bool) float64 {
		m := newStack(0.4)
		m.SetCheckpoint(checkpoint)
		s := torch.NewScope(nil)
		defer s.Close()
		c := &Call{Scope: s, Training: true, Generator: torch.NewGenerator(7)}
		m.loss(c).Backward()
		return s.Own(torch.Rand(c.Generator, torch.Float64)).Item()
	}
	require.Equal(t, draw(false), draw(true))
}

func TestFrozenFirstLayer(t *testing.T) {
	m := newStack(0)
	m.Blocks[0].W1.SetTrainable(false)
	want := gradsOf(t, m, m.loss, 1)
	require.Nil(t, want[0])
	for _, b := range m.Blocks {
		b.SetCheckpoint(true)
	}
	require.Equal(t, want, gradsOf(t, m, m.loss, 1))
}

func TestLayerUsedTwiceAndUnusedOutputs(t *testing.T) {
	b := newBlock(3, 4)
	loss := func(c *Call) *torch.Tensor {
		x := Run(b, c, input3(c.Scope))
		y := Run(b, c, x)
		Run(b, c, y) // nobody looks at it
		return y.Sum()
	}
	want := gradsOf(t, b, loss, 1)
	b.SetCheckpoint(true)
	b.calls = 0
	require.Equal(t, want, gradsOf(t, b, loss, 1))
	require.Equal(t, 5, b.calls, "the unused run is not recomputed")
	steps(t, 20, func() { gradsOf(t, b, loss, 1) })
}

// A branch of a layer whose graph dies before the layer ends must not end the frame.
type forgetful struct {
	Hooks
	Inner *block
}

func (f *forgetful) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	side := torch.NewScope(c.Scope)
	f.Inner.Forward(c.with(side), x.In(side)).Exp()
	side.Close()
	return Run(f.Inner, c, x)
}

func TestBranchThatDiesDuringForward(t *testing.T) {
	f := &forgetful{Inner: newBlock(3, 4)}
	loss := func(c *Call) *torch.Tensor { return Run(f, c, input3(c.Scope)).Sum() }
	want := gradsOf(t, f, loss, 1)
	f.SetCheckpoint(true)
	require.Equal(t, want, gradsOf(t, f, loss, 1))
	steps(t, 20, func() { gradsOf(t, f, loss, 1) })
}

func TestRetainGraphTwice(t *testing.T) {
	b := newBlock(3, 5)
	twice := func() []float64 {
		s := torch.NewScope(nil)
		defer s.Close()
		y := Run(b, &Call{Scope: s, Training: true}, input3(s)).Sum()
		y.Backward(torch.BackwardOptions{RetainGraph: true})
		y.Backward()
		g := torch.Slice[float64](b.W1.In(s).Grad())
		b.W1.Tensor().SetGrad(nil)
		b.W2.Tensor().SetGrad(nil)
		return g
	}
	want := twice()
	b.SetCheckpoint(true)
	require.Equal(t, want, twice())
	steps(t, 20, func() { twice() })
}

// wayward does something else when it is recomputed.
type wayward struct {
	Hooks
	W     *Param
	again func(c *Call, x *torch.Tensor) *torch.Tensor
}

func (w *wayward) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	if c.Recomputing {
		x = w.again(c, x)
	}
	return x.MatMul(w.W.In(c.Scope)).Exp().Sin()
}

func TestErrorsOfRecomputation(t *testing.T) {
	mine := errors.New("mine")
	w := &wayward{W: ones(3, 3)}
	w.SetCheckpoint(true)
	g := torch.NewGenerator(1)
	for name, c := range map[string]struct {
		again func(c *Call, x *torch.Tensor) *torch.Tensor
		want  string
	}{
		"error": {func(*Call, *torch.Tensor) *torch.Tensor { torch.Throw(mine); return nil }, "recompute the checkpointed *nn.wayward: mine"},
		"panic": {func(*Call, *torch.Tensor) *torch.Tensor { panic("bug") }, "bug"},
		"shape": {func(_ *Call, x *torch.Tensor) *torch.Tensor { return x.Narrow(0, 0, 1) }, "saved tensor 0 is Tensor([1 3], float64, cpu), was Tensor([2 3], float64, cpu)"},
		"fewer": {func(c *Call, x *torch.Tensor) *torch.Tensor {
			torch.Throw(torch.Try(func() { x.Select(7, 0) }))
			return x
		}, "select"},
		"nothing": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.again = c.again
			if c.again == nil {
				w.again = func(_ *Call, x *torch.Tensor) *torch.Tensor { return x }
			}
			steps(t, 5, func() {
				s := torch.NewScope(nil)
				defer s.Close()
				y := Run(w, &Call{Scope: s, Training: true, Generator: g}, input3(s)).Sum()
				err := torch.Try(func() { y.Backward() })
				if c.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.want)
				}
				w.W.Tensor().SetGrad(nil)
			})
			require.True(t, torch.GradEnabled())
		})
	}
	w.again = func(*Call, *torch.Tensor) *torch.Tensor { torch.Throw(mine); return nil }
	s := torch.NewScope(nil)
	defer s.Close()
	y := Run(w, &Call{Scope: s, Training: true}, input3(s)).Sum()
	require.ErrorIs(t, torch.Try(func() { y.Backward() }), mine)
}

// unruly records fewer tensors when it is recomputed.
type unruly struct {
	Hooks
	W *Param
}

func (u *unruly) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	y := x.MatMul(u.W.In(c.Scope))
	if !c.Recomputing {
		y = y.Exp()
	}
	return y
}

func TestRecomputationThatSavesFewerTensors(t *testing.T) {
	u := &unruly{W: ones(3, 3)}
	u.SetCheckpoint(true)
	s := torch.NewScope(nil)
	defer s.Close()
	y := Run(u, &Call{Scope: s, Training: true}, input3(s)).Sum()
	require.ErrorContains(t, torch.Try(func() { y.Backward() }), "the checkpointed *nn.unruly saved 1 tensors when recomputed and 2 before")
}

func TestInputChangedInPlace(t *testing.T) {
	b := newBlock(3, 5)
	b.SetCheckpoint(true)
	s := torch.NewScope(nil)
	defer s.Close()
	x := input3(s)
	y := Run(b, &Call{Scope: s, Training: true}, x).Sum()
	x.AddScalarInPlace(1)
	require.ErrorContains(t, torch.Try(func() { y.Backward() }), "input 0 (Tensor([2 3], float64, cpu)) of the checkpointed *nn.block was changed in place")
}

// counted counts how often its last product ran to its end.
type counted struct {
	Hooks
	W        *Param
	products int
}

func (l *counted) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	y := x.Tanh().MatMul(l.W.In(c.Scope))
	l.products++
	return y
}

func TestEarlyStopSkipsTheLastProduct(t *testing.T) {
	l := &counted{W: ones(3, 3)}
	l.SetCheckpoint(true)
	s := torch.NewScope(nil)
	defer s.Close()
	Run(l, &Call{Scope: s, Training: true}, input3(s)).Sum().Backward()
	require.Equal(t, 1, l.products)
	require.NotNil(t, l.W.Tensor().Grad())
}

// A layer without anything to save keeps nothing.
func TestNothingSaved(t *testing.T) {
	l := &identityLayer{}
	l.SetCheckpoint(true)
	steps(t, 5, func() {
		s := torch.NewScope(nil)
		defer s.Close()
		x := input3(s).SetRequiresGrad(true)
		Run(l, &Call{Scope: s, Training: true, Generator: torch.NewGenerator(1)}, x).Sum().Backward()
	})
}

func TestErrorInForwardLeavesNothing(t *testing.T) {
	w := &failing{W: ones(3, 3)}
	w.SetCheckpoint(true)
	g := torch.NewGenerator(1)
	steps(t, 5, func() {
		s := torch.NewScope(nil)
		defer s.Close()
		require.Error(t, torch.Try(func() { Run(w, &Call{Scope: s, Training: true, Generator: g}, input3(s)) }))
		require.Equal(t, 1, s.Len())
	})
}

type failing struct {
	Hooks
	W *Param
}

func (l *failing) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return x.MatMul(l.W.In(c.Scope)).Exp().MatMul(x)
}

// Without a generator of the call's own, masks come from that of the process, which recomputation sets back all the same.
func TestRecomputationFindsTheMasksOfTheProcess(t *testing.T) {
	grads := func(checkpoint, reentrant bool) (list []any) {
		m := newStack(0.4)
		for i, b := range m.Blocks {
			b.SetCheckpoint(checkpoint && (i > 0 || !reentrant)) // that kind needs an input with a gradient
			b.SetCheckpointReentrant(reentrant)
		}
		m.Drop.SetCheckpoint(checkpoint)
		torch.ManualSeed(7)
		s := torch.NewScope(nil)
		defer s.Close()
		m.loss(&Call{Scope: s, Training: true}).Backward()
		for _, p := range Params(m) {
			if g := p.Tensor().Grad(); g != nil {
				list = append(list, torch.Slice[float64](g))
			}
		}
		return append(list, s.Own(torch.Rand(torch.DefaultGenerator(torch.CPU), torch.Float64)).Item()) // it goes on as before
	}
	want := grads(false, false)
	require.Equal(t, want, grads(true, false))
	require.Equal(t, want, grads(true, true))
}

// Checkpointing must keep nothing between forward and backward but inputs and the generator's state; nested, not even inner
// inputs.
func TestCheckpointHoldsOnlyTheOuterInput(t *testing.T) {
	m := newStack(0)
	held := func() int64 {
		s := torch.NewScope(nil)
		defer s.Close()
		x := s.Own(torch.Ones(torch.Float64, 1000, 3))
		before := torch.MemoryStats().LiveBytes
		y := Run(m, &Call{Scope: s, Training: true}, x).Sum()
		held := torch.MemoryStats().LiveBytes - before
		y.Backward()
		return held
	}
	plain := held()
	m.Blocks[0].SetCheckpoint(true)
	m.Blocks[1].SetCheckpoint(true)
	inner := held()
	m.SetCheckpoint(true)
	nested := held()
	require.Less(t, inner, plain)
	state := torch.DefaultGenerator(torch.CPU).State()
	defer state.Free()
	require.Equal(t, 1000*3*8+8+3*state.Numel(), nested, "the output, the loss and three states")
}

// A Go function's saved tensors take part too.
type squareLayer struct {
	Hooks
	W *Param
}

type squareFunction struct{}

func (squareFunction) Forward(ctx *torch.FunctionContext, in []*torch.Tensor) []*torch.Tensor {
	ctx.Save(in[0], nil)
	return []*torch.Tensor{in[0].Mul(in[0])}
}

func (squareFunction) Backward(ctx *torch.FunctionContext, g []*torch.Tensor) ([]*torch.Tensor, error) {
	return []*torch.Tensor{g[0].Mul(ctx.Saved()[0]).MulScalar(2)}, nil
}

func (l *squareLayer) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return torch.Apply(squareFunction{}, x.MatMul(l.W.In(c.Scope)))[0].Exp()
}

func TestGoFunctionInsideCheckpoint(t *testing.T) {
	l := &squareLayer{W: NewParam(torch.Randn(torch.NewGenerator(3), torch.Float64, 3, 3), true)}
	loss := func(c *Call) *torch.Tensor { return Run(l, c, input3(c.Scope).MulScalar(0.1)).Sum() }
	want := gradsOf(t, l, loss, 1)
	l.SetCheckpoint(true)
	require.Equal(t, want, gradsOf(t, l, loss, 1))
	steps(t, 20, func() { gradsOf(t, l, loss, 1) })
}
