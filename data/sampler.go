package data

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Tail says what happens to the last rows of an epoch that do not fill a batch on every rank.
type Tail uint8

const (
	// TailWrap fills the last batches with rows from the start of the epoch, so that all ranks do the same number of
	// equally large steps. A single rank has nobody to keep in step with: its last batch is short. (Accelerate's
	// even_batches, its default.)
	TailWrap Tail = iota
	// TailDrop leaves them out (dataloader_drop_last).
	TailDrop
	// TailShort deals out what is left: every row exactly once, ranks may get a short batch or an empty one. For
	// evaluation.
	TailShort
)

// SamplerConfig of NewSampler. Only Rows and BatchSize must be set.
type SamplerConfig struct {
	// Rows is the number of examples of an epoch.
	Rows int
	// BatchSize is the number of rows of one batch of one rank (per_device_train_batch_size).
	BatchSize int
	// World and Rank shard the rows; a World of 0 means 1.
	World, Rank int
	// Seed and the number of the epoch determine the order, the same on all ranks.
	Seed uint64
	// InOrder keeps the order of the rows instead of shuffling them.
	InOrder bool
	// Lengths switches on group-by-length: rows of similar length come into the same batch, in random order. One entry
	// per row, in tokens.
	Lengths []int
	// Tail is what happens at the end of an epoch.
	Tail Tail
}

// Position is where a sampler stands: a small value for a checkpoint. It does not depend on the number of ranks or the
// batch size, so a run may go on with others.
type Position struct {
	// Epoch counts from 0.
	Epoch int `json:"epoch"`
	// Index is the number of rows of the epoch that all ranks together have consumed.
	Index int `json:"index"`
}

// Sampler deals the rows of each epoch out to ranks. With global batch g = World*BatchSize, the step that begins at Index
// gives rank r the rows order[Index+r*BatchSize+i] for i < BatchSize, as Accelerate's BatchSamplerShard does. It is not
// safe for concurrent use.
type Sampler struct {
	cfg   SamplerConfig
	pos   Position
	order []int // of the epoch orderOf
	of    int
}

// NewSampler returns a sampler at the start of epoch 0.
func NewSampler(cfg SamplerConfig) (*Sampler, error) {
	if cfg.World == 0 {
		cfg.World = 1
	}
	switch {
	case cfg.Rows <= 0:
		return nil, fmt.Errorf("data: sampler: there are %d rows", cfg.Rows)
	case cfg.BatchSize <= 0:
		return nil, fmt.Errorf("data: sampler: the batch size is %d", cfg.BatchSize)
	case cfg.World > 0 && cfg.BatchSize > math.MaxInt32/cfg.World:
		return nil, fmt.Errorf("data: sampler: a step of %d ranks with batch size %d is more than %d rows", cfg.World, cfg.BatchSize, math.MaxInt32)
	case cfg.World < 0 || cfg.Rank < 0 || cfg.Rank >= cfg.World:
		return nil, fmt.Errorf("data: sampler: rank %d of %d", cfg.Rank, cfg.World)
	case cfg.Lengths != nil && len(cfg.Lengths) != cfg.Rows:
		return nil, fmt.Errorf("data: sampler: %d lengths for %d rows", len(cfg.Lengths), cfg.Rows)
	case cfg.Tail == TailDrop && cfg.Rows < cfg.World*cfg.BatchSize:
		return nil, fmt.Errorf("data: sampler: drop_last leaves no batch: %d rows, but a step of %d ranks with batch size %d takes %d",
			cfg.Rows, cfg.World, cfg.BatchSize, cfg.World*cfg.BatchSize)
	}
	return &Sampler{cfg: cfg, of: -1}, nil
}

// StepsPerEpoch returns the number of batches that each rank gets in a full epoch.
func (s *Sampler) StepsPerEpoch() int {
	global := s.cfg.World * s.cfg.BatchSize
	if s.cfg.Tail == TailDrop {
		return s.cfg.Rows / global
	}
	return (s.cfg.Rows + global - 1) / global
}

// Position returns where Next goes on. Seek with it, in a sampler with the same rows, seed and order, repeats the rest.
func (s *Sampler) Position() Position { return s.pos }

// Seek continues at p.
func (s *Sampler) Seek(p Position) error {
	if p.Epoch < 0 || p.Index < 0 || p.Index > s.cfg.Rows {
		return fmt.Errorf("data: sampler: position epoch %d, index %d does not fit %d rows: is it another dataset?", p.Epoch, p.Index, s.cfg.Rows)
	}
	s.pos = p
	s.normalise()
	return nil
}

// Next returns this rank's rows of the next step and advances. At the end of an epoch it begins the next one. The result
// is empty only with TailShort.
func (s *Sampler) Next() []int {
	n, batch := s.cfg.Rows, s.cfg.BatchSize
	order := s.epoch(s.pos.Epoch)
	wrap := s.cfg.Tail == TailWrap && s.cfg.World > 1
	rows := make([]int, 0, min(batch, n))
	for i := s.pos.Index + s.cfg.Rank*batch; len(rows) < batch && (i < n || wrap); i++ {
		rows = append(rows, order[i%n])
	}
	s.pos.Index += s.cfg.World * batch
	s.normalise()
	return rows
}

// normalise turns a position at which the epoch has no further batch into the start of the next epoch.
func (s *Sampler) normalise() {
	n, global := s.cfg.Rows, s.cfg.World*s.cfg.BatchSize
	if s.pos.Index >= n || s.cfg.Tail == TailDrop && s.pos.Index+global > n {
		s.pos = Position{Epoch: s.pos.Epoch + 1}
	}
}

// epoch returns the order of the rows in an epoch.
func (s *Sampler) epoch(epoch int) []int {
	if s.of == epoch {
		return s.order
	}
	order := make([]int, s.cfg.Rows)
	for i := range order {
		order[i] = i
	}
	if !s.cfg.InOrder {
		shuffle(order, rand.NewPCG(s.cfg.Seed, uint64(epoch)))
	}
	if s.cfg.Lengths != nil {
		groupByLength(order, s.cfg.Lengths, s.cfg.World*s.cfg.BatchSize)
	}
	s.order, s.of = order, epoch
	return order
}

// shuffle is Fisher and Yates's, written out so that the order does not depend on the version of Go: PCG is a fixed
// algorithm, rand.Shuffle is not. The bias of the remainder is below 2^-32 for any number of rows that fits in memory.
func shuffle(x []int, src *rand.PCG) {
	for i := len(x) - 1; i > 0; i-- {
		j := int(src.Uint64() % uint64(i+1))
		x[i], x[j] = x[j], x[i]
	}
}

// groupByLength sorts within blocks of up to 50 batches, longest first, and begins with the longest row of all, so that
// memory runs out at once if it does (transformers' LengthGroupedSampler).
func groupByLength(order, lengths []int, batch int) {
	size := max(1, min(len(order)/(batch*4), 50)) * batch
	longest := 0
	for from := 0; from < len(order); from += size {
		block := order[from:min(from+size, len(order))]
		slices.SortStableFunc(block, func(a, b int) int { return cmp.Compare(lengths[b], lengths[a]) })
		if lengths[block[0]] > lengths[order[longest]] {
			longest = from
		}
	}
	order[0], order[longest] = order[longest], order[0]
}
