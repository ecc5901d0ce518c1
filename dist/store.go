package dist

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// DefaultTimeout bounds rendezvous and collectives where nothing else is said, as in PyTorch.
const DefaultTimeout = 30 * time.Minute

// goodbyeTimeout is how long the rank that serves the store waits for the others to say that they are done.
const goodbyeTimeout = 5 * time.Second

// Store is where ranks meet: a small table of keys that all of them can read, write and wait for.
type Store struct {
	rank   int
	size   int
	server bool // this process serves the store to the others
	root   *Store

	mu     sync.Mutex
	h      capi.Handle
	uses   int // calls that run
	closed bool
}

// ErrStoreClosed is the reason of requests to a store after Close.
var ErrStoreClosed = errors.New("the store is closed")

// use calls f with the store's handle. A request can wait for a server that does not answer, while another goroutine
// closes the store: the handle lives until the last one has returned.
func (s *Store) use(f func(h capi.Handle) error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrStoreClosed
	}
	s.uses++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.uses--; s.closed && s.uses == 0 {
			capi.FreeStore(s.h)
		}
	}()
	return f(s.h)
}

// NewHashStore makes a store inside the process, for ranks that are goroutines. They share the value.
func NewHashStore() (*Store, error) {
	if err := capi.Load(); err != nil {
		return nil, err
	}
	h, err := capi.HashStore()
	if err != nil {
		return nil, fmt.Errorf("dist: make a store: %w", err)
	}
	return &Store{h: h, size: 1}, nil
}

// Connect opens the store that env names: rank 0 serves it, unless the launcher does. It returns when every rank has
// connected, and fails when ctx ends or after timeout (0: DefaultTimeout).
func Connect(ctx context.Context, env Env, timeout time.Duration) (*Store, error) {
	if err := capi.Load(); err != nil {
		return nil, err
	}
	timeout = bounded(ctx, timeout)
	server := env.Rank == 0 && !env.UseAgentStore
	type result struct {
		h   capi.Handle
		err error
	}
	opened := make(chan result, 1)
	go func() {
		h, err := capi.TCPStore(env.MasterAddr, env.MasterPort, server, 0, timeout.Milliseconds())
		opened <- result{h, err}
	}()
	var r result
	select {
	case r = <-opened:
	case <-ctx.Done():
		go func() { // the connecting itself cannot be ended
			if r := <-opened; r.err == nil {
				capi.FreeStore(r.h)
			}
		}()
		return nil, fmt.Errorf("dist: rank %d: connect to the store at %s:%d: %w", env.Rank, env.MasterAddr, env.MasterPort, context.Cause(ctx))
	}
	if r.err != nil {
		what, hint := "connect to", "is rank 0 running, and are MASTER_ADDR and MASTER_PORT right?"
		if server {
			what, hint = "serve", "where another program has the port, choose another one (MASTER_PORT, main_process_port)"
		}
		return nil, fmt.Errorf("dist: rank %d of %d: %s the store at %s:%d: %w (%s)", env.Rank, env.WorldSize, what, env.MasterAddr, env.MasterPort, r.err, hint)
	}
	root := &Store{h: r.h, rank: env.Rank, size: env.WorldSize, server: server}
	s, err := root.Prefix("attempt-" + strconv.Itoa(env.RestartCount))
	if err != nil {
		root.release()
		return nil, err
	}
	s.root = root
	if err := s.meet(ctx, timeout); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// meet waits until every rank has arrived, so that a missing one is named.
func (s *Store) meet(ctx context.Context, timeout time.Duration) error {
	if err := s.Set("here/"+strconv.Itoa(s.rank), []byte{1}); err != nil {
		return err
	}
	deadline := time.Now().Add(timeout)
	for rank := range s.size {
		if err := s.await(ctx, "here/"+strconv.Itoa(rank), deadline); err != nil {
			return fmt.Errorf("dist: rank %d: rank %d of %d did not arrive within %v: %w", s.rank, rank, s.size, timeout, err)
		}
	}
	return nil
}

// Prefix is a view of the store in which every key starts with name.
func (s *Store) Prefix(name string) (*Store, error) {
	var h capi.Handle
	err := s.use(func(parent capi.Handle) (err error) {
		h, err = capi.PrefixStore(parent, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dist: prefix store %q: %w", name, err)
	}
	return &Store{h: h, rank: s.rank, size: s.size}, nil
}

// Set stores value under key.
func (s *Store) Set(key string, value []byte) error {
	if err := s.use(func(h capi.Handle) error { return capi.StoreSet(h, key, value) }); err != nil {
		return fmt.Errorf("dist: rank %d: store %q: %w", s.rank, key, err)
	}
	return nil
}

// Get waits for key, until ctx ends or timeout passes (0: DefaultTimeout), and returns its value.
func (s *Store) Get(ctx context.Context, key string, timeout time.Duration) ([]byte, error) {
	if err := s.await(ctx, key, time.Now().Add(bounded(ctx, timeout))); err != nil {
		return nil, fmt.Errorf("dist: rank %d: wait for %q in the store: %w", s.rank, key, err)
	}
	v, err := s.read(key)
	if err != nil {
		return nil, fmt.Errorf("dist: rank %d: read %q in the store: %w", s.rank, key, err)
	}
	return v, nil
}

// read is the value of a key that is set.
func (s *Store) read(key string) (v []byte, err error) {
	err = s.use(func(h capi.Handle) (err error) {
		v, err = capi.StoreGet(h, key, getTimeout.Milliseconds())
		return err
	})
	return v, err
}

// isSet tells whether key is set.
func (s *Store) isSet(key string) (set bool, err error) {
	err = s.use(func(h capi.Handle) (err error) {
		set, err = capi.StoreCheck(h, key)
		return err
	})
	return set, err
}

// getTimeout bounds the reading of a key that is known to be there.
const getTimeout = 10 * time.Second

// await polls until key is set. The store's own waiting cannot be ended by ctx.
func (s *Store) await(ctx context.Context, key string, deadline time.Time) error {
	pause := time.Millisecond
	for {
		set, err := s.isSet(key)
		if err != nil {
			return err
		}
		if set {
			return nil
		}
		if time.Now().After(deadline) {
			return ErrTimeout
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}

// Add adds delta to the counter under key and returns the sum.
func (s *Store) Add(key string, delta int64) (int64, error) {
	var v int64
	err := s.use(func(h capi.Handle) (err error) {
		v, err = capi.StoreAdd(h, key, delta)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("dist: rank %d: add to %q in the store: %w", s.rank, key, err)
	}
	return v, nil
}

// Close leaves the store. The rank that serves it waits until the others have left, for a bounded time: if it went
// first, their last requests would fail.
func (s *Store) Close(ctx context.Context) error {
	defer s.release()
	if s.root == nil || s.size < 2 {
		return nil
	}
	var err error
	if !within(goodbyeTimeout/2, func() { err = s.Set("done/"+strconv.Itoa(s.rank), []byte{1}) }) || err != nil {
		return nil // the server is gone or stopped: there is nobody to say goodbye to
	}
	if !s.root.server {
		return nil
	}
	deadline := time.Now().Add(goodbyeTimeout)
	for rank := range s.size {
		if err := s.await(ctx, "done/"+strconv.Itoa(rank), deadline); err != nil {
			return fmt.Errorf("dist: rank %d left the store before rank %d had said goodbye: %w", s.rank, rank, err)
		}
	}
	return nil
}

func (s *Store) release() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	if s.uses == 0 {
		capi.FreeStore(s.h)
	}
	s.mu.Unlock()
	if s.root != nil {
		s.root.release()
	}
}

// bounded is timeout, or DefaultTimeout for 0, cut to what ctx leaves.
func bounded(ctx context.Context, timeout time.Duration) time.Duration {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	return max(timeout, time.Millisecond)
}

func isTimeout(err error) bool {
	var ce *capi.Error
	return errors.As(err, &ce) && ce.Kind == capi.KindTimeout
}
