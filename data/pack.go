package data

import (
	"fmt"
	"slices"
)

// Strategy says how Pack combines examples.
type Strategy uint8

const (
	// BFD packs whole examples, best fit decreasing: longest first, each into the fullest row that has room. Examples
	// longer than a row are truncated. (TRL's "bfd", its default.)
	BFD Strategy = iota
	// BFDSplit is BFD, but cuts examples that are longer than a row into pieces instead of truncating them.
	BFDSplit
	// Wrapped joins all examples and cuts the stream every Length tokens, without regard to their borders.
	Wrapped
)

// ParseStrategy reads TRL's packing_strategy: bfd, bfd_split or wrapped; "" means bfd.
func ParseStrategy(name string) (Strategy, error) {
	switch name {
	case "", "bfd":
		return BFD, nil
	case "bfd_split":
		return BFDSplit, nil
	case "wrapped":
		return Wrapped, nil
	}
	return 0, fmt.Errorf("data: unknown packing strategy %q; use bfd, bfd_split or wrapped", name)
}

func (s Strategy) String() string {
	return [...]string{"bfd", "bfd_split", "wrapped"}[s]
}

// PackOptions of Pack.
type PackOptions struct {
	// Length is the number of tokens of a packed row. It must be set.
	Length int
	// Strategy is BFD in the zero value.
	Strategy Strategy
	// Window is the number of consecutive examples that are packed together; 0 means 1000, as in TRL. A negative window
	// packs all examples at once, which fills rows best.
	Window int
}

// PackStats tells what Pack did.
type PackStats struct {
	Rows      int   // packed rows
	Tokens    int64 // tokens in them
	TokensCut int64 // tokens that BFD cut off examples longer than a row
}

// Pack combines examples into rows of at most opts.Length tokens, as TRL's pack_dataset does. Rows of BFD and BFDSplit
// keep the lengths of their sequences; Collate makes padding-free batches of them. The input is not changed, but
// unpacked rows may share its memory.
func Pack(examples []Example, opts PackOptions) ([]Example, PackStats, error) {
	if opts.Length <= 0 {
		return nil, PackStats{}, fmt.Errorf("data: pack: the length of a row is %d; set max_length", opts.Length)
	}
	if opts.Strategy > Wrapped {
		return nil, PackStats{}, fmt.Errorf("data: pack: unknown strategy %d", opts.Strategy)
	}
	window := opts.Window
	if window == 0 {
		window = 1000
	}
	if window < 0 {
		window = max(1, len(examples))
	}
	var rows []Example
	var stats PackStats
	for part := range slices.Chunk(examples, window) {
		switch opts.Strategy {
		case Wrapped:
			rows = append(rows, wrap(part, opts.Length)...)
		case BFDSplit:
			rows = append(rows, bestFit(split(part, opts.Length), opts.Length)...)
		default:
			part, cut := truncate(part, opts.Length)
			stats.TokensCut += cut
			rows = append(rows, bestFit(part, opts.Length)...)
		}
	}
	stats.Rows = len(rows)
	for _, row := range rows {
		stats.Tokens += int64(len(row.IDs))
	}
	return rows, stats, nil
}

// slice returns tokens from..to of an example.
func (ex Example) slice(from, to int) Example {
	return Example{IDs: ex.IDs[from:to:to], Labels: ex.Labels[from:to:to]}
}

func truncate(examples []Example, length int) (out []Example, cut int64) {
	for _, ex := range examples {
		n := min(len(ex.IDs), length)
		cut += int64(len(ex.IDs) - n)
		out = append(out, ex.slice(0, n))
	}
	return out, cut
}

func split(examples []Example, length int) (out []Example) {
	for _, ex := range examples {
		for from := 0; from < len(ex.IDs); from += length {
			out = append(out, ex.slice(from, min(from+length, len(ex.IDs))))
		}
	}
	return out
}

// wrap joins and cuts.
func wrap(examples []Example, length int) (out []Example) {
	var all Example
	for _, ex := range examples {
		all.IDs = append(all.IDs, ex.IDs...)
		all.Labels = append(all.Labels, ex.Labels...)
	}
	return split([]Example{all}, length)
}

// bestFit packs examples, none of which is longer than length. Among rows with equal room the one that got that room
// first is filled first, and rows stay in the order in which they were opened.
func bestFit(examples []Example, length int) []Example {
	order := make([]int, 0, len(examples))
	for i, ex := range examples {
		if len(ex.IDs) > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(examples[b].IDs) - len(examples[a].IDs) })

	var rows []Example
	byRoom := make([][]int, length+1) // rows that have exactly this much room, oldest first
	rooms := newRoomIndex(length)
	for _, i := range order {
		ex := examples[i]
		n := len(ex.IDs)
		room, ok := rooms.atLeast(n)
		row := len(rows)
		if ok {
			row = byRoom[room][0]
			if byRoom[room] = byRoom[room][1:]; len(byRoom[room]) == 0 {
				rooms.set(room, false)
			}
		} else {
			room = length
			rows = append(rows, Example{})
		}
		r := &rows[row]
		r.IDs, r.Labels = append(r.IDs, ex.IDs...), append(r.Labels, ex.Labels...)
		r.Lengths = append(r.Lengths, n)
		if room -= n; room > 0 {
			byRoom[room] = append(byRoom[room], row)
			rooms.set(room, true)
		}
	}
	return rows
}

// roomIndex is a set of numbers 1..n that finds the smallest member at or above a bound in O(log n): a binary tree whose
// nodes tell whether there is a member below them.
type roomIndex struct {
	size int // leaves, a power of two; leaf i is node size+i
	has  []bool
}

func newRoomIndex(n int) *roomIndex {
	size := 1
	for size <= n {
		size *= 2
	}
	return &roomIndex{size, make([]bool, 2*size)}
}

func (x *roomIndex) set(i int, member bool) {
	node := x.size + i
	x.has[node] = member
	for node /= 2; node > 0; node /= 2 {
		x.has[node] = x.has[2*node] || x.has[2*node+1]
	}
}

// atLeast returns the smallest member that is not below bound.
func (x *roomIndex) atLeast(bound int) (int, bool) {
	node := x.size + bound
	for !x.has[node] {
		for node&1 == 1 { // a right child: go up until there is a subtree to the right
			node /= 2
		}
		if node == 0 {
			return 0, false
		}
		node++
	}
	for node < x.size {
		node *= 2
		if !x.has[node] {
			node++
		}
	}
	return node - x.size, true
}
