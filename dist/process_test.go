package dist_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

// childVariable makes this test binary a rank instead: its value is the seed of what the ranks run.
const childVariable = "GOFSDP_DIST_TEST_RANK"

// exitLost is how a rank ends that was told why a collective failed.
const exitLost = 3

func TestMain(m *testing.M) {
	if seed := os.Getenv(childVariable); seed != "" {
		os.Exit(rankMain(seed))
	}
	os.Exit(m.Run())
}

// rankMain runs random collectives, several at once, until one fails.
func rankMain(seed string) int {
	n, _ := strconv.ParseUint(seed, 10, 64)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	env, err := dist.FromEnv()
	if err != nil {
		fmt.Println("no place:", err)
		return 2
	}
	store, err := dist.Connect(ctx, env, time.Minute)
	if err != nil {
		fmt.Println("not connected:", err)
		return 2
	}
	g, err := dist.NewGloo(ctx, store, env.Rank, env.WorldSize, dist.GlooConfig{Timeout: collectiveTimeout, ConnectTimeout: time.Minute})
	if err != nil {
		fmt.Println("not connected:", err)
		return 2
	}
	fmt.Println("connected")
	took, err := collectives(ctx, g, rand.New(rand.NewPCG(n, 1)))
	fmt.Println("failed:", err)
	if took > collectiveTimeout+5*time.Second { // 1 s if the store is gone too, and this machine may be busy
		fmt.Println("it took", took)
		return 2
	}
	var stall *dist.Stall
	if !errors.As(err, &stall) {
		return 2
	}
	_, _ = g.Close(ctx), store.Close(ctx) // the store may be gone
	churn()
	return exitLost
}

// collectiveTimeout bounds the collectives of the ranks that are processes.
const collectiveTimeout = 2 * time.Second

// collectives runs rounds of three at once, the same on all ranks, on tensors that live no longer than their round, until
// one fails. took is how long that one ran.
func collectives(ctx context.Context, g dist.Group, r *rand.Rand) (took time.Duration, err error) {
	round := func(i int) error {
		s := torch.NewScope(nil)
		defer s.Close()
		ctx := dist.WithLabel(ctx, fmt.Sprintf("round-%d", i))
		var works []dist.Work
		for range 3 {
			n := int64(1 + r.IntN(1<<uint(4+r.IntN(15))))
			whole := s.Own(torch.Empty(torch.Float32, n*int64(g.Size())))
			part := s.Own(torch.Empty(torch.Float32, n))
			var w dist.Work
			var err error
			switch r.IntN(4) {
			case 0:
				w, err = g.AllGather(ctx, whole, part)
			case 1:
				w, err = g.ReduceScatter(ctx, part, whole, dist.Sum)
			case 2:
				w, err = g.AllReduce(ctx, whole, dist.Avg)
			case 3:
				w, err = g.Broadcast(ctx, whole, r.IntN(g.Size()))
			}
			if err != nil {
				return err
			}
			works = append(works, w)
		}
		var errs []error
		for _, w := range works {
			errs = append(errs, w.Wait(ctx))
		}
		return errors.Join(errs...)
	}
	for i := 0; ; i++ {
		start := time.Now()
		if err := round(i); err != nil {
			return time.Since(start), err
		}
	}
}

// churn reuses memory: what was freed while somebody still wrote to it shows.
func churn() {
	for range 20 {
		s := torch.NewScope(nil)
		for i := range int64(16) {
			s.Own(torch.Ones(torch.Float32, 1<<(i+2)))
		}
		s.Close()
		runtime.GC()
		time.Sleep(2 * time.Millisecond)
	}
}

// rankProcess is one rank of a job of processes.
type rankProcess struct {
	*exec.Cmd
	mu        sync.Mutex
	out       bytes.Buffer
	connected chan struct{}
	ended     chan error
}

func (p *rankProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := bytes.Contains(p.out.Bytes(), []byte("connected\n"))
	p.out.Write(b)
	if !had && bytes.Contains(p.out.Bytes(), []byte("connected\n")) {
		close(p.connected)
	}
	return len(b), nil
}

func (p *rankProcess) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// startRanks starts size ranks, waits until they run collectives, and kills them at the end of the test.
func startRanks(t testing.TB, size int, seed uint64) []*rankProcess {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	port := freePort(t)
	var ranks []*rankProcess
	for rank := range size {
		p := &rankProcess{Cmd: exec.Command(program), connected: make(chan struct{}), ended: make(chan error, 1)}
		p.Stdout, p.Stderr = p, p
		p.Env = append(os.Environ(), childVariable+"="+strconv.FormatUint(seed+1, 10), "OMP_NUM_THREADS=1",
			fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("LOCAL_RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size),
			fmt.Sprintf("LOCAL_WORLD_SIZE=%d", size), "MASTER_ADDR=127.0.0.1", fmt.Sprintf("MASTER_PORT=%d", port))
		p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, p.Start())
		t.Cleanup(func() { _ = p.Process.Kill() })
		go func() { p.ended <- p.Wait() }()
		ranks = append(ranks, p)
	}
	for rank, p := range ranks {
		select {
		case <-p.connected:
		case err := <-p.ended:
			t.Fatalf("rank %d ended before it was connected: %v\n%s", rank, err, p.output())
		case <-time.After(time.Minute):
			t.Fatalf("rank %d did not connect:\n%s", rank, p.output())
		}
	}
	return ranks
}

// lose sends a signal to one of the ranks after a while, and checks that the others end with a reason.
func lose(t testing.TB, size, victim int, signal syscall.Signal, after time.Duration, seed uint64) []string {
	t.Helper()
	ranks := startRanks(t, size, seed)
	time.Sleep(after)
	require.NoError(t, ranks[victim].Process.Signal(signal))
	var reasons []string
	for rank, p := range ranks {
		if rank == victim {
			continue
		}
		select {
		case err := <-p.ended:
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "rank %d:\n%s", rank, p.output())
			require.Equal(t, exitLost, exit.ExitCode(), "rank %d ended with %v after %v to rank %d of %d, seed %d:\n%s",
				rank, err, signal, victim, size, seed, p.output())
		case <-time.After(30 * time.Second):
			t.Fatalf("rank %d did not end after %v to rank %d:\n%s", rank, signal, victim, p.output())
		}
		_, reason, _ := strings.Cut(p.output(), "failed: ")
		reasons = append(reasons, reason)
	}
	return reasons
}

func TestKilledAndStoppedRanksAreNamed(t *testing.T) {
	for _, c := range []struct {
		victim int
		signal syscall.Signal
	}{{1, syscall.SIGKILL}, {1, syscall.SIGSTOP}, {0, syscall.SIGKILL}, {0, syscall.SIGSTOP}} {
		t.Run(fmt.Sprintf("rank %d, %v", c.victim, c.signal), func(t *testing.T) {
			t.Parallel()
			for _, reason := range lose(t, 3, c.victim, c.signal, 300*time.Millisecond, 7) {
				t.Log(reason)
				require.Contains(t, reason, `for "round-`, "the unit")
				if c.victim == 0 {
					require.Contains(t, reason, "the store, which rank 0 or the launcher serves, tells nothing")
				} else {
					require.Contains(t, reason, "rank 1 shows no sign of life")
				}
			}
		})
	}
}

// A survivor must end by itself and never by a signal of its own, whenever the other rank goes. GOFSDP_STRESS sets the
// number of runs: `GOFSDP_STRESS=200 go test ./dist -run Stress -parallel 8 -timeout 1h`.
func TestStressLosingRanks(t *testing.T) {
	runs := 4
	if s := os.Getenv("GOFSDP_STRESS"); s != "" {
		var err error
		runs, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	for i := range runs {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(uint64(i), 2))
			signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[i/2%2]
			lose(t, 2+r.IntN(2), i%2, signal, time.Duration(r.IntN(400))*time.Millisecond, uint64(i))
		})
	}
}
