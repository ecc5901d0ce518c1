package data

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Source is random access to examples. Loader calls it from one goroutine.
type Source interface {
	// Len returns the number of examples.
	Len() int
	// Example returns example i, from 0.
	Example(i int) (Example, error)
}

// Examples is a Source in memory.
type Examples []Example

// Len returns the number of examples.
func (e Examples) Len() int { return len(e) }

// Example returns example i.
func (e Examples) Example(i int) (Example, error) { return e[i], nil }

// Lengths returns the number of tokens of each example, for SamplerConfig.Lengths.
func (e Examples) Lengths() []int {
	lengths := make([]int, len(e))
	for i, ex := range e {
		lengths[i] = len(ex.IDs)
	}
	return lengths
}

// LoaderConfig of NewLoader. The zero value works.
type LoaderConfig struct {
	// Collate makes the batches.
	Collate CollateOptions
	// Prefetch is the number of batches made ahead; 0 means 2.
	Prefetch int
	// Epochs is the number of the epoch (from 0) at whose start Next returns io.EOF; 0 never ends.
	Epochs int
}

// Loader makes batches in a goroutine, ahead of the steps that consume them.
type Loader struct {
	batches chan loaded
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu  sync.Mutex
	end error // what Next returns from now on
}

type loaded struct {
	batch Batch
	err   error
}

// NewLoader starts to read from where the sampler stands. The sampler belongs to the loader from here on: to save a
// position, take Batch.Position of the last batch that was consumed. Call Close when done.
func NewLoader(src Source, sampler *Sampler, cfg LoaderConfig) *Loader {
	prefetch := cfg.Prefetch
	if prefetch <= 0 {
		prefetch = 2
	}
	ctx, stop := context.WithCancel(context.Background())
	// The goroutine itself holds one more batch while it waits.
	l := &Loader{batches: make(chan loaded, prefetch-1), stop: stop}
	l.done.Go(func() {
		defer close(l.batches)
		for {
			var next loaded
			if cfg.Epochs > 0 && sampler.Position().Epoch >= cfg.Epochs {
				next.err = io.EOF
			} else {
				next.batch, next.err = load(src, sampler, cfg.Collate)
			}
			select {
			case l.batches <- next:
			case <-ctx.Done():
				return
			}
			if next.err != nil {
				return
			}
		}
	})
	return l
}

func load(src Source, sampler *Sampler, opts CollateOptions) (Batch, error) {
	rows := sampler.Next()
	examples := make([]Example, len(rows))
	for i, row := range rows {
		if row >= src.Len() {
			return Batch{}, fmt.Errorf("data: load row %d of %d: the sampler was made for more rows", row, src.Len())
		}
		var err error
		if examples[i], err = src.Example(row); err != nil {
			return Batch{}, fmt.Errorf("data: load row %d: %w", row, err)
		}
	}
	b := Collate(examples, opts)
	b.Position = sampler.Position()
	return b, nil
}

// Next returns the next batch. It returns io.EOF after the last epoch, the error of the source that ended the stream, or
// ctx's error, after which Next may be called again and nothing is lost.
func (l *Loader) Next(ctx context.Context) (Batch, error) {
	if err := ctx.Err(); err != nil {
		return Batch{}, err
	}
	select {
	case next, ok := <-l.batches:
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case !ok && l.end == nil:
			return Batch{}, fmt.Errorf("data: loader: %w", io.ErrClosedPipe)
		case !ok:
			return Batch{}, l.end
		case next.err != nil:
			l.end = next.err
		}
		return next.batch, next.err
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	}
}

// Close stops the goroutine and waits for it. A later Next fails.
func (l *Loader) Close() error {
	l.stop()
	for range l.batches { // batches that were made ahead
	}
	l.done.Wait()
	return nil
}
