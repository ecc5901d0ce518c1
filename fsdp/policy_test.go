package fsdp_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// lm is an embedding, two layers, a norm and a head that may share the embedding's weight.
type lm struct {
	nn.Hooks
	Embed  *nn.Embedding `torch:"embed"`
	Layers []*layer      `torch:"layers"`
	Norm   *nn.LayerNorm `torch:"norm"`
	Head   *nn.Linear    `torch:"head"`
	body   bool          // forward stops before the head
}

type layer struct {
	nn.Hooks
	Big   *nn.Linear `torch:"big"`
	Small *nn.Linear `torch:"small"`
}

// ModuleKind implements fsdp.Kind.
func (l *layer) ModuleKind() string { return "Layer" }

func (l *layer) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	return nn.Run(l.Small, c, nn.Run(l.Big, c, x).Tanh())
}

func (m *lm) Forward(c *nn.Call, ids *torch.Tensor) *torch.Tensor {
	x := nn.Run(m.Embed, c, ids)
	for _, l := range m.Layers {
		x = nn.Run(l, c, x)
	}
	x = nn.Run(m.Norm, c, x)
	if m.body {
		return x
	}
	return nn.Run(m.Head, c, x).Sin().Sum()
}

const vocabulary = 13

func newLM(tied bool, device torch.Device) *lm {
	const dtype = torch.Float64
	m := &lm{Embed: nn.NewEmbedding(vocabulary, 4, dtype, device)}
	for range 2 {
		m.Layers = append(m.Layers, &layer{Big: nn.NewLinear(4, 6, true, dtype, device), Small: nn.NewLinear(6, 4, false, dtype, device)})
	}
	m.Norm = nn.NewLayerNorm([]int64{4}, 1e-5, dtype, device)
	m.Head = nn.NewLinear(4, vocabulary, false, dtype, device)
	if tied {
		m.Head.Weight = m.Embed.Weight
	}
	return m
}

func initLM(tied bool) *lm {
	m := newLM(tied, torch.CPU)
	nn.ResetParameters(m, torch.NewGenerator(5))
	return m
}

func TestPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		config fsdp.Config
		want   []string
	}{
		"none":      {fsdp.Config{}, []string{""}},
		"kind":      {fsdp.Config{Units: fsdp.ByKind("Layer")}, []string{"layers.0", "layers.1", ""}},
		"type":      {fsdp.Config{Units: fsdp.ByType[*nn.Embedding]()}, []string{"embed", ""}},
		"predicate": {fsdp.Config{Units: func(c fsdp.Candidate) bool { return c.Name == "layers.1.big" }}, []string{"layers.1.big", ""}},
		"nested": {fsdp.Config{Units: fsdp.Any(fsdp.ByKind("Layer"), func(c fsdp.Candidate) bool { return c.Name == "layers.1.big" })},
			[]string{"layers.0", "layers.1", "layers.1.big", ""}},
		// Big has 30 elements, a layer without it 24, the embedding and the head 52.
		"size 30": {fsdp.Config{Units: fsdp.BySize(30)}, []string{"embed", "layers.0.big", "layers.1.big", "head", ""}},
		"size 50": {fsdp.Config{Units: fsdp.BySize(50)}, []string{"embed", "layers.0", "layers.1", "head", ""}},
		"size 99": {fsdp.Config{Units: fsdp.BySize(99)}, []string{""}},
		"together": {fsdp.Config{Units: fsdp.ByKind("Layer"), Together: [][]string{{"head", "norm"}}},
			[]string{"layers.0", "layers.1", "norm+head", ""}},
		"adapter": {fsdp.Config{Units: fsdp.ByAdapter("Layer")}, []string{"embed", "layers.0", "layers.0.small", "layers.1", "layers.1.small", "head", ""}},
	} {
		m := initLM(false)
		m.Norm.Weight.SetTrainable(false)
		for _, l := range m.Layers {
			l.Big.Weight.SetTrainable(false)
		}
		f, err := fsdp.Wrap(m, dist.NewSingle(), c.config)
		require.NoError(t, err, name)
		require.Equal(t, c.want, f.Units(), name)
	}
}

// FC-32: a tied embedding is refused where it would be in two units, with what to do; in one unit it stays one
// parameter, also from the meta device, and every row of an uneven vocabulary moves.
func TestTiedParameters(t *testing.T) {
	units := fsdp.Any(fsdp.ByType[*nn.Embedding](), fsdp.ByType[*nn.Linear]())
	_, err := fsdp.Wrap(initLM(true), dist.NewSingle(), fsdp.Config{Units: units})
	require.ErrorContains(t, err, "embed.weight")
	require.ErrorContains(t, err, "tied parameters must be in one unit; Config.Together makes one of several modules")
	_, err = fsdp.Wrap(initLM(true), dist.NewSingle(), fsdp.Config{Units: fsdp.ByType[*nn.Embedding]()})
	require.ErrorContains(t, err, "is also head.weight, outside the unit")

	ids := func(rank int) *torch.Tensor {
		var list []int64
		for i := range int64(vocabulary) {
			list = append(list, (i+int64(rank))%vocabulary)
		}
		return torch.FromSlice(list, 1, vocabulary)
	}
	for _, together := range [][][]string{nil, {{"embed", "head"}}, {{"embed", "norm", "head"}}} {
		for _, checkpoint := range []bool{false, true} {
			for _, meta := range []bool{false, true} {
				t.Run(fmt.Sprint(together, checkpoint, meta), func(t *testing.T) {
					ref := initLM(true)
					var before *torch.Tensor
					torch.NoGrad(func() { before = ref.Embed.Weight.Tensor().Clone() })
					for rank := range 3 {
						s := torch.NewScope(nil)
						nn.Run(ref, &nn.Call{Scope: s, Training: true}, s.Own(ids(rank))).DivScalar(3).Backward()
						s.Close()
					}
					sgd(nn.Params(ref))
					var want []*torch.Tensor
					for _, p := range nn.Params(ref) {
						want = append(want, p.Tensor().Detach())
					}
					require.Positive(t, want[0].Sub(before).Abs().AMax(false, 1).Min().Item(), "every row moves")
					ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
						m := newLM(true, torch.Meta)
						if !meta {
							m = initLM(true)
						}
						for _, l := range m.Layers {
							l.SetCheckpoint(checkpoint)
						}
						f, err := fsdp.Wrap(m, g, fsdp.Config{Units: fsdp.ByKind("Layer"), Together: together})
						if err != nil {
							return err
						}
						if meta {
							if err := f.Materialize(m, torch.NewGenerator(5)); err != nil {
								return err
							}
						}
						s := torch.NewScope(nil)
						defer s.Close()
						err = torch.Try(func() {
							nn.Run(m, &nn.Call{Context: ctx, Scope: s, Training: true}, s.Own(ids(g.Rank()))).Backward()
						})
						if err != nil {
							return err
						}
						sgd(nn.Params(m))
						if m.Head.Weight != m.Embed.Weight || len(nn.Params(m)) != len(want) {
							return fmt.Errorf("the tie is gone")
						}
						for i, p := range nn.NamedParams(m) {
							if err := compare(p.Name, p.Param.Tensor(), want[i], g); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
		}
	}
}

// The head runs outside the root, on chunks of the hidden states, each with a loss of its own.
func TestUnitOutsideTheRoot(t *testing.T) {
	run := func(ctx context.Context, m *lm, rank int, separate bool, div float64) error {
		m.body = true
		return torch.Try(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			c := &nn.Call{Context: ctx, Scope: s, Training: true}
			x := nn.Run(m, c, s.Own(torch.FromSlice([]int64{1, 2, 3, int64(4 + rank)}, 4)))
			leaf := x
			if separate {
				leaf = x.Detach().SetRequiresGrad(true)
			}
			var total *torch.Tensor
			for i := range int64(2) {
				loss := nn.Run(m.Head, c, leaf.Narrow(0, 2*i, 2)).Sin().Sum().DivScalar(div)
				switch {
				case separate:
					loss.Backward()
				case total == nil:
					total = loss
				default:
					total = total.Add(loss)
				}
			}
			if separate {
				x.Backward(torch.BackwardOptions{Gradient: leaf.Grad()})
			} else {
				total.Backward()
			}
		})
	}
	for _, separate := range []bool{false, true} {
		for _, together := range [][][]string{{{"head"}}, {{"norm", "head"}}} {
			t.Run(fmt.Sprint(separate, together), func(t *testing.T) {
				ref := initLM(false)
				for rank := range 2 {
					require.NoError(t, run(t.Context(), ref, rank, separate, 2))
				}
				ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
					m := initLM(false)
					f, err := fsdp.Wrap(m, g, fsdp.Config{Units: fsdp.ByKind("Layer"), Together: together})
					if err != nil {
						return err
					}
					if err := torch.Try(func() {
						s := torch.NewScope(nil)
						defer s.Close()
						nn.Run(m.Head, &nn.Call{Scope: s}, s.Own(torch.Ones(torch.Float64, 1, 4)))
					}); err == nil {
						return fmt.Errorf("a unit ran before the root")
					}
					for range 2 {
						f.ZeroGrad()
						if err := run(ctx, m, g.Rank(), separate, 1); err != nil {
							return err
						}
						for i, p := range nn.NamedParams(m) {
							if err := compare(p.Name, p.Param.Tensor().Grad(), nn.Params(ref)[i].Tensor().Grad(), g); err != nil {
								return err
							}
						}
					}
					return nil
				})
			})
		}
	}
}
