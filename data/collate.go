package data

// CollateOptions of Collate. The zero value pads with id 0 to the longest example.
type CollateOptions struct {
	// PadID fills the end of short rows. Any id will do: its label is IgnoreIndex.
	PadID int32
	// PadToMultipleOf rounds T up to a multiple; 0 and 1 change nothing.
	PadToMultipleOf int
	// PaddingFree puts all sequences behind each other into one row instead of padding them. It is implied where an
	// example holds several packed sequences, which must not attend to each other.
	PaddingFree bool
}

// Batch is the input of one step, as row-major [B, T] slices.
type Batch struct {
	// IDs and Labels hold B*T entries; padding has CollateOptions.PadID and IgnoreIndex.
	IDs, Labels []int64
	// B is the number of rows (1 where padding-free), T their length.
	B, T int
	// Lengths are the lengths of the sequences without padding: one per row, or one per sequence where padding-free.
	Lengths []int
	// PositionIDs of a padding-free batch count from 0 in each sequence, B*T entries. nil in a padded batch.
	PositionIDs []int64
	// CuSeqlens of a padding-free batch are the borders of its sequences: 0, …, T. Padding at the end is a sequence of its
	// own, without an entry in Lengths. nil in a padded batch.
	CuSeqlens []int32
	// Position is where a sampler goes on after this batch. Loader sets it.
	Position Position
}

// PaddingFree tells whether the batch is one row of sequences, to be cut by CuSeqlens.
func (b Batch) PaddingFree() bool { return b.CuSeqlens != nil }

// LossTokens counts the targets: labels that are not IgnoreIndex at a position that has a predecessor in its row.
func (b Batch) LossTokens() int {
	n := 0
	for i, label := range b.Labels {
		if label != IgnoreIndex && i%b.T > 0 {
			n++
		}
	}
	return n
}

// Collate makes a batch, right-padded, or one row where padding-free. There the first label of every sequence is
// IgnoreIndex, because the token before it belongs to another sequence.
func Collate(examples []Example, opts CollateOptions) Batch {
	free := opts.PaddingFree
	for _, ex := range examples {
		free = free || len(ex.Lengths) > 1
	}
	if free {
		return collateFree(examples, opts)
	}
	b := Batch{B: len(examples), Lengths: make([]int, len(examples))}
	for i, ex := range examples {
		b.Lengths[i] = len(ex.IDs)
		b.T = max(b.T, len(ex.IDs))
	}
	b.T = roundUp(b.T, opts.PadToMultipleOf)
	b.fill(opts.PadID)
	for i, ex := range examples {
		b.put(i*b.T, ex)
	}
	return b
}

func collateFree(examples []Example, opts CollateOptions) Batch {
	b := Batch{B: 1, CuSeqlens: []int32{0}}
	for _, ex := range examples {
		if len(ex.Lengths) == 0 {
			b.Lengths = append(b.Lengths, len(ex.IDs))
		} else {
			b.Lengths = append(b.Lengths, ex.Lengths...)
		}
		b.T += len(ex.IDs)
	}
	used := b.T
	b.T = roundUp(b.T, opts.PadToMultipleOf)
	b.fill(opts.PadID)
	at := 0
	for _, ex := range examples {
		b.put(at, ex)
		at += len(ex.IDs)
	}
	sequences := b.Lengths
	if b.T > used {
		sequences = append(sequences[:len(sequences):len(sequences)], b.T-used)
	}
	b.PositionIDs = make([]int64, 0, b.T)
	for _, n := range sequences {
		if n > 0 {
			b.Labels[len(b.PositionIDs)] = IgnoreIndex
		}
		for i := range n {
			b.PositionIDs = append(b.PositionIDs, int64(i))
		}
		b.CuSeqlens = append(b.CuSeqlens, int32(len(b.PositionIDs)))
	}
	return b
}

// fill allocates IDs and Labels as padding.
func (b *Batch) fill(pad int32) {
	b.IDs, b.Labels = make([]int64, b.B*b.T), make([]int64, b.B*b.T)
	for i := range b.IDs {
		b.IDs[i], b.Labels[i] = int64(pad), IgnoreIndex
	}
}

// put copies an example to offset at.
func (b *Batch) put(at int, ex Example) {
	for i, id := range ex.IDs {
		b.IDs[at+i], b.Labels[at+i] = int64(id), int64(ex.Labels[i])
	}
}

func roundUp(n, multiple int) int {
	if multiple <= 1 {
		return n
	}
	return (n + multiple - 1) / multiple * multiple
}
