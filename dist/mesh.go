package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Splitter is a Group that can make groups of some of its ranks. All groups of this package can.
type Splitter interface {
	Group
	// Split makes the group of ranks, numbers in this group without repeats, in their order; this rank must be one of
	// them. Every rank of the group splits the same number of times in the same order and under the same names, each
	// into the part that it belongs to. One rank alone needs no connection.
	Split(ctx context.Context, name string, ranks []int) (Group, error)
}

// Mesh arranges the ranks of a group in a grid with named dimensions, the last one fastest, as PyTorch's DeviceMesh:
// rank = (…(c₀·d₁ + c₁)·d₂ + …). In a mesh of 2 x 4 named replicate and shard, ranks 0 … 3 share one copy of the
// model between them, and ranks 1 and 5 hold the same shard of it.
type Mesh struct {
	world  Group
	dims   []int
	names  []string
	coords []int
	subs   []Group
}

// NewMesh arranges the ranks of world and connects, along every dimension, the ranks that differ in its coordinate only.
// dims must multiply to world's size. A dimension that spans the world shares its group, and does not close it.
func NewMesh(ctx context.Context, world Group, dims []int, names []string) (*Mesh, error) {
	if err := checkMesh(world.Size(), dims, names); err != nil {
		return nil, fmt.Errorf("dist: rank %d: mesh of %v named %q over %d ranks: %w", world.Rank(), dims, names, world.Size(), err)
	}
	m := &Mesh{world: world, dims: slices.Clone(dims), names: slices.Clone(names), coords: unravel(world.Rank(), dims)}
	splitter, ok := world.(Splitter)
	for i, name := range names {
		if dims[i] == world.Size() {
			m.subs = append(m.subs, world)
			continue
		}
		if !ok {
			return nil, fmt.Errorf("dist: rank %d: mesh of %v: a %T cannot be split", world.Rank(), dims, world)
		}
		sub, err := splitter.Split(ctx, name, m.ranksAlong(i))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("dist: rank %d: mesh of %v: connect dimension %q: %w", world.Rank(), dims, name, err), m.Close(ctx))
		}
		m.subs = append(m.subs, sub)
	}
	return m, nil
}

func checkMesh(size int, dims []int, names []string) error {
	if len(dims) == 0 || len(dims) != len(names) {
		return fmt.Errorf("%d sizes and %d names: each dimension has one of each", len(dims), len(names))
	}
	left := size
	for i, d := range dims {
		if d < 1 || left%d != 0 {
			return fmt.Errorf("dimension %q of %d: the sizes must multiply to %d", names[i], d, size)
		}
		left /= d
		if names[i] == "" || slices.Contains(names[:i], names[i]) {
			return fmt.Errorf("the name %q is empty or given twice", names[i])
		}
	}
	if left != 1 {
		return fmt.Errorf("the sizes multiply to %d: they must multiply to %d", size/left, size)
	}
	return nil
}

// unravel is the place of rank in a grid of dims.
func unravel(rank int, dims []int) []int {
	coords := make([]int, len(dims))
	for i, d := range slices.Backward(dims) {
		coords[i], rank = rank%d, rank/d
	}
	return coords
}

// ranksAlong are the ranks that differ from this one in coordinate i at most.
func (m *Mesh) ranksAlong(i int) []int {
	stride := 1
	for _, d := range m.dims[i+1:] {
		stride *= d
	}
	first := m.world.Rank() - m.coords[i]*stride
	ranks := make([]int, m.dims[i])
	for c := range ranks {
		ranks[c] = first + c*stride
	}
	return ranks
}

// World is the group that the mesh was made over.
func (m *Mesh) World() Group { return m.world }

// Dims are the sizes of the dimensions.
func (m *Mesh) Dims() []int { return slices.Clone(m.dims) }

// Names are the names of the dimensions.
func (m *Mesh) Names() []string { return slices.Clone(m.names) }

// Coordinate is this rank's place in every dimension.
func (m *Mesh) Coordinate() []int { return slices.Clone(m.coords) }

// Sub is the group along dimension name, in which this rank's number is its coordinate.
func (m *Mesh) Sub(name string) (Group, error) {
	i := slices.Index(m.names, name)
	if i < 0 {
		return nil, fmt.Errorf("dist: rank %d: the mesh has no dimension %q; it has %q", m.world.Rank(), name, m.names)
	}
	return m.subs[i], nil
}

// Abort aborts the groups of all dimensions.
func (m *Mesh) Abort(cause error) {
	for _, g := range m.subs {
		g.Abort(cause)
	}
}

// Close leaves the groups that NewMesh made. Every rank calls it; the world stays open.
func (m *Mesh) Close(ctx context.Context) error {
	var errs []error
	for _, g := range m.subs {
		if g != m.world {
			errs = append(errs, g.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// memberOf is the place of rank in ranks, the list of a Split of a group of size ranks.
func memberOf(ranks []int, rank, size int) (int, error) {
	seen := make(map[int]bool, len(ranks))
	for _, r := range ranks {
		if r < 0 || r >= size || seen[r] {
			return 0, fmt.Errorf("rank %d of a group of %d is named twice or does not exist", r, size)
		}
		seen[r] = true
	}
	i := slices.Index(ranks, rank)
	if i < 0 {
		return 0, fmt.Errorf("this rank is not among %v", ranks)
	}
	return i, nil
}
