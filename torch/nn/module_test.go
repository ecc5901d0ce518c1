package nn

import (
	"testing"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

func ones(shape ...int64) *Param { return NewParam(torch.Ones(torch.Float64, shape...), true) }

func paramNames(module any) []string {
	var list []string
	for _, n := range NamedParams(module) {
		list = append(list, n.Name)
		for _, s := range n.Shared {
			list = append(list, "="+s)
		}
	}
	return list
}

type leaf struct {
	Hooks
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`
}

type common struct {
	Norm *Param `torch:"norm"`
}

type named interface{ Name() string }

func (l *leaf) Name() string { return "leaf" }

type tree struct {
	Hooks
	common
	First   *leaf    `torch:"first"`
	Blocks  []*leaf  `torch:"blocks"`
	Pair    [2]*leaf `torch:"pair"`
	Any     named    `torch:"any"`
	Nothing named
	Value   leaf `torch:"value"`
	Untied  *leaf
	Skipped *leaf `torch:"-"`
	private *leaf
	Parent  *tree
	Config  struct{ Size int }
	Scalars []int
	Flat    *leaf  `torch:""`
	Tied    *Param `torch:"tied"`
}

func newLeaf(bias bool) *leaf {
	l := &leaf{Weight: ones(2)}
	if bias {
		l.Bias = ones(2)
	}
	return l
}

func newTree() *tree {
	m := &tree{First: newLeaf(true), Blocks: []*leaf{newLeaf(false), nil, newLeaf(true)}, Pair: [2]*leaf{nil, newLeaf(false)},
		Any: newLeaf(false), Value: leaf{Weight: ones(2)}, Untied: newLeaf(false), Skipped: newLeaf(true), private: newLeaf(true),
		Flat: newLeaf(false)}
	m.Norm = ones(1)
	m.Parent = m
	m.Tied = m.First.Weight
	return m
}

func TestWalkOrderTagsAndTiedParams(t *testing.T) {
	m := newTree()
	require.Equal(t, []string{"norm", "first.weight", "=tied", "first.bias", "blocks.0.weight", "blocks.2.weight", "blocks.2.bias",
		"pair.1.weight", "any.weight", "value.weight", "Untied.weight", "weight"}, paramNames(m))
	require.Len(t, Params(m), 11)
}

type Common struct {
	Norm *Param `torch:"norm"`
}

type exported struct {
	Common
	*leaf2
	Leaf *leaf `torch:"leaf"`
}

type leaf2 struct{ W *Param }

func TestWalkEmbeddedStructs(t *testing.T) {
	m := &exported{Common: Common{Norm: ones(1)}, leaf2: &leaf2{W: ones(1)}, Leaf: newLeaf(false)}
	require.Equal(t, []string{"norm", "leaf.weight"}, paramNames(m))
	require.Empty(t, NamedParams(nil))
	require.Empty(t, NamedParams((*exported)(nil)))
	require.Empty(t, NamedParams(3))
}

func TestModulesListsEachOnceOuterFirst(t *testing.T) {
	m := newTree()
	m.Blocks[2] = m.First
	var names []string
	for _, n := range Modules(m) {
		names = append(names, n.Name)
	}
	require.Equal(t, []string{"", "first", "blocks.0", "pair.1", "any", "value", "Untied", ""}, names)
	require.Same(t, m, Modules(m)[0].Module)
}

func TestParam(t *testing.T) {
	p := ones(4, 3)
	require.True(t, p.Tensor().RequiresGrad())
	require.Equal(t, []int64{4, 3}, p.Shape())
	lo, hi := p.Rows()
	require.Equal(t, []int64{0, 4}, []int64{lo, hi})
	p.SetTrainable(false)
	require.False(t, p.Tensor().RequiresGrad())
	p.SetTrainable(true)
	require.True(t, p.Tensor().RequiresGrad())
	require.True(t, NewReplicatedParam(torch.Ones(torch.Float32, 2)).Replicated())
}
