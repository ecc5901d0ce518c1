package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
)

// held is a range of rows and the first rank that holds it.
type held struct {
	lo, hi int64
	rank   int
}

// plan decides which rank writes which rows: writes[kind][name] is true where this rank writes its own. tensors are all
// tensors, in the order of the ranks' lists.
type plan struct {
	writes  map[Kind]map[string]bool
	tensors []item
}

// makePlan joins what all ranks hold. Every rank computes the same faults. Ranges must be equal or disjoint and leave no
// row out.
func makePlan(all []report, rank int) (*plan, error) {
	type key struct {
		kind Kind
		name string
	}
	type tensor struct {
		item
		ranges []held
	}
	byKey := map[key]*tensor{}
	var order []*tensor
	var faults faults
	for r, rep := range all {
		for _, it := range rep.Items {
			k := key{it.Kind, it.Name}
			t := byKey[k]
			if t == nil {
				t = &tensor{item: it}
				byKey[k], order = t, append(order, t)
			} else if t.DType != it.DType || !slices.Equal(t.Shape, it.Shape) {
				faults.add(fmt.Errorf("%s tensor %q is %s%v on rank %d, %s%v on rank %d", it.Kind, it.Name,
					t.DType, t.Shape, t.ranges[0].rank, it.DType, it.Shape, r))
				continue
			}
			t.ranges = append(t.ranges, held{it.Lo, it.Hi, r})
		}
	}
	p := &plan{writes: map[Kind]map[string]bool{Model: {}, Optimizer: {}}}
	for _, t := range order {
		ranges, err := tile(t.ranges, rowsOf(t.Shape))
		if err != nil {
			faults.add(fmt.Errorf("%s tensor %q %s%v: %w", t.Kind, t.Name, t.DType, t.Shape, err))
			continue
		}
		p.tensors = append(p.tensors, t.item)
		for _, h := range ranges {
			if h.rank == rank && p.writes[t.Kind] != nil {
				p.writes[t.Kind][t.Name] = true
			}
		}
	}
	return p, faults.err()
}

// tile drops empty and repeated ranges and checks that the others cover rows exactly. A tensor without rows keeps one
// range, so that it is not lost.
func tile(ranges []held, rows int64) ([]held, error) {
	if rows == 0 {
		return ranges[:1], nil
	}
	sorted := slices.DeleteFunc(slices.Clone(ranges), func(h held) bool { return h.lo == h.hi })
	slices.SortStableFunc(sorted, func(a, b held) int { return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.hi, b.hi)) })
	sorted = slices.CompactFunc(sorted, func(a, b held) bool { return a.lo == b.lo && a.hi == b.hi })
	next := int64(0)
	for i, h := range sorted {
		if h.lo > next {
			return nil, fmt.Errorf("rows %d to %d are on no rank", next, h.lo)
		}
		if h.lo < next {
			o := sorted[i-1]
			return nil, fmt.Errorf("rows %d to %d of rank %d overlap rows %d to %d of rank %d", o.lo, o.hi, o.rank, h.lo, h.hi, h.rank)
		}
		next = h.hi
	}
	if next < rows {
		return nil, fmt.Errorf("rows %d to %d are on no rank", next, rows)
	}
	return sorted, nil
}
