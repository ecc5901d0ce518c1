package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	tcp "net"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// roleVariable makes this test binary a rank instead: its value names one of roles.
const roleVariable = "GOFSDP_FSDP_TEST_ROLE"

// exitError is how a rank ends whose role returned an error.
const exitError = 3

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(rankMain(role))
	}
	os.Exit(m.Run())
}

// roles are what ranks do that are processes of their own.
var roles = map[string]func(ctx context.Context, g dist.Group) error{
	"leave out a unit": func(ctx context.Context, g dist.Group) error {
		return trainRank(ctx, g, 1, func(n *chain) { n.route = []int{0, 2, 3} })
	},
	"leave out the last units": func(ctx context.Context, g dist.Group) error {
		return trainRank(ctx, g, 1, func(n *chain) { n.route = []int{0, 1} })
	},
	"swap units": func(ctx context.Context, g dist.Group) error {
		return trainRank(ctx, g, 1, func(n *chain) { n.route = []int{0, 2, 1, 3} })
	},
	"freeze": func(ctx context.Context, g dist.Group) error {
		return trainRank(ctx, g, 1, func(n *chain) { n.Layers[1].W.SetTrainable(false) })
	},
	"train":   func(ctx context.Context, g dist.Group) error { return trainRank(ctx, g, -1, nil) },
	"dropout": dropoutRank,
	"memory": func(ctx context.Context, g dist.Group) error {
		return memoryRank(ctx, g, fsdp.Config{}, 3, 3)
	},
	"memory, direct": func(ctx context.Context, g dist.Group) error {
		return memoryRank(ctx, g, fsdp.Config{DirectBytes: 1 << 20}, 2, 3)
	},
	"memory, keep": func(ctx context.Context, g dist.Group) error {
		return memoryRank(ctx, g, fsdp.Config{Reshard: fsdp.ReshardAfterBackward}, memorySize.layers+1, memorySize.layers+2)
	},
}

// trainRank trains a chain whose units all have sizes of their own, until something fails. After some steps one rank, if
// there is such a one, does something else than the others.
func trainRank(ctx context.Context, g dist.Group, odd int, set func(n *chain)) error {
	n := newChain(4)
	for i, l := range n.Layers {
		l.Table = nn.NewParam(torch.Ones(torch.Float64, int64(1000*(i+1))), false)
	}
	if _, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()}); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if i == 3 {
			fmt.Println("running")
			if g.Rank() == odd {
				set(n)
			}
		}
		if err := n.step(ctx, g.Rank(), i); err != nil {
			return err
		}
	}
}

// processTimeout bounds the collectives of the ranks that are processes.
const processTimeout = 20 * time.Second

func rankMain(role string) int {
	err := func() error {
		f := roles[role]
		if f == nil {
			return fmt.Errorf("no role %q", role)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		env, err := dist.FromEnv()
		if err != nil {
			return err
		}
		store, err := dist.Connect(ctx, env, time.Minute)
		if err != nil {
			return err
		}
		timeout := processTimeout
		if role == "train" {
			timeout = 3 * time.Second
		}
		g, err := dist.NewGloo(ctx, store, env.Rank, env.WorldSize, dist.GlooConfig{Timeout: timeout, ConnectTimeout: time.Minute})
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, g), g.Close(ctx), store.Close(ctx))
	}()
	if err != nil {
		fmt.Println("failed:", err)
		return exitError
	}
	return 0
}

// rankProcess is one rank of a job of processes.
type rankProcess struct {
	*exec.Cmd
	mu    sync.Mutex
	out   strings.Builder
	ended chan error
}

func (p *rankProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *rankProcess) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// startRanks starts size ranks in a role, and kills them at the end of the test.
func startRanks(t testing.TB, size int, role string) []*rankProcess {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	l, err := tcp.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*tcp.TCPAddr).Port
	require.NoError(t, l.Close())
	var ranks []*rankProcess
	for rank := range size {
		p := &rankProcess{Cmd: exec.Command(program), ended: make(chan error, 1)}
		p.Stdout, p.Stderr = p, p
		p.Env = append(os.Environ(), roleVariable+"="+role, "OMP_NUM_THREADS=1",
			fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("LOCAL_RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size),
			fmt.Sprintf("LOCAL_WORLD_SIZE=%d", size), "MASTER_ADDR=127.0.0.1", fmt.Sprintf("MASTER_PORT=%d", port))
		p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, p.Start())
		t.Cleanup(func() { _ = p.Process.Kill() })
		go func() { p.ended <- p.Wait() }()
		ranks = append(ranks, p)
	}
	return ranks
}

// end waits for a rank and returns its exit status, -1 for a signal.
func (p *rankProcess) end(t testing.TB, within time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("a rank did not end within %v:\n%s", within, p.output())
		return 0
	}
}

// running waits until a rank trains.
func (p *rankProcess) running(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.output(), "running\n") }, time.Minute, 10*time.Millisecond)
}

// FC-40: a rank runs other units than the rest, whose sizes differ: no process dies by a signal, and every rank ends with
// an error that names unit and rank, long before the timeout.
func TestProcessesThatRunDifferentUnits(t *testing.T) {
	for role, want := range map[string][]string{
		"leave out a unit":         {`#51 all-gather for "unit \"Layers.1\""`, "rank 1", "the ranks run different collectives"},
		"leave out the last units": {`#47 all-gather for "unit \"Layers.3\""`, "rank 1", "the ranks run different collectives"},
		"swap units":               {`unit \"Layers.1\"`, `unit \"Layers.2\"`, "rank 1", "the ranks run different collectives"},
		"freeze":                   {`unit "Layers.1"`, "has other trainable parameters in it"},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			ranks := startRanks(t, 3, role)
			for _, p := range ranks {
				p.running(t)
			}
			start := time.Now()
			for rank, p := range ranks {
				code := p.end(t, time.Minute)
				require.Equal(t, exitError, code, "rank %d: %v\n%s", rank, p.ProcessState, p.output())
				_, reason, _ := strings.Cut(p.output(), "failed: ")
				t.Log(reason)
				require.Contains(t, reason, fmt.Sprintf("fsdp: rank %d: ", rank))
				for _, w := range want {
					require.Contains(t, reason, w, "rank %d", rank)
				}
			}
			require.Less(t, time.Since(start), processTimeout*3/4)
		})
	}
}

// A rank that is stopped in the middle of training: the others' errors name it, the unit and the operation, in time.
func TestStoppedRankIsNamedWithItsUnit(t *testing.T) {
	ranks := startRanks(t, 3, "train")
	for _, p := range ranks {
		p.running(t)
	}
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, ranks[1].Process.Signal(syscall.SIGSTOP))
	start := time.Now()
	for _, rank := range []int{0, 2} {
		p := ranks[rank]
		require.Equal(t, exitError, p.end(t, time.Minute), "rank %d: %v\n%s", rank, p.ProcessState, p.output())
		_, reason, _ := strings.Cut(p.output(), "failed: ")
		t.Log(reason)
		require.Regexp(t, fmt.Sprintf(`fsdp: rank %d: (gather|reduce gradients of|reduce-scatter gradients of) (root unit|unit "Layers\.\d")`, rank), reason)
		require.Regexp(t, `(all-gather|reduce-scatter) #\d+ for "(root unit|unit \\"Layers\.\d\\")": timed out after 3s`, reason)
		require.Contains(t, reason, "rank 1 shows no sign of life")
	}
	require.Less(t, time.Since(start), 10*time.Second)
}

// FC-56: with dropout and recomputation the gradients are those without recomputation, bit for bit, though the mask is drawn
// from the generator of the process; and the first layer is trained, whose input needs no gradient.
func TestDropoutAndRecomputationInProcesses(t *testing.T) {
	for rank, p := range startRanks(t, 2, "dropout") {
		if code := p.end(t, time.Minute); code != 0 {
			t.Errorf("rank %d: %v\n%s", rank, p.ProcessState, p.output())
		}
	}
}

// dropNet is layers with dropout.
type dropNet struct {
	nn.Hooks
	Layers []*dropLayer `torch:"layers"`
}

type dropLayer struct {
	nn.Hooks
	W    *nn.Param   `torch:"w"`
	Drop *nn.Dropout `torch:"drop"`
}

func (l *dropLayer) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	return nn.Run(l.Drop, c, x).Linear(l.W.In(c.Scope), nil).Tanh()
}

func (n *dropNet) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	for _, l := range n.Layers {
		x = nn.Run(l, c, x)
	}
	return x.Mul(x).Sum()
}

func dropoutRank(ctx context.Context, g dist.Group) error {
	gradients := func(checkpoint, reentrant bool) (list []*torch.Tensor, err error) {
		generator := torch.NewGenerator(5)
		n := &dropNet{}
		for range 3 {
			drop, err := nn.NewDropout(0.5)
			if err != nil {
				return nil, err
			}
			l := &dropLayer{W: nn.NewParam(torch.Randn(generator, torch.Float32, 16, 16), true), Drop: drop}
			l.SetCheckpoint(checkpoint)
			l.SetCheckpointReentrant(reentrant)
			n.Layers = append(n.Layers, l)
		}
		if _, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*dropLayer]()}); err != nil {
			return nil, err
		}
		torch.ManualSeed(int64(40 + g.Rank()))
		err = torch.Try(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			x := s.Own(torch.Ones(torch.Float32, 8, 16))
			x.SetRequiresGrad(reentrant) // that kind needs an input that does
			nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).Backward()
			for _, l := range n.Layers {
				list = append(list, l.W.Tensor().Grad())
			}
		})
		return list, err
	}
	want, err := gradients(false, false)
	if err != nil {
		return err
	}
	for _, reentrant := range []bool{false, true} {
		got, err := gradients(true, reentrant)
		if err != nil {
			return err
		}
		for i := range want {
			if want[i] == nil || got[i] == nil || !got[i].Equal(want[i]) || want[i].Abs().Sum().Item() == 0 {
				return fmt.Errorf("re-entrant %v: the gradient of layer %d sums up to %v, want %v, and must be equal bit for bit",
					reentrant, i, got[i].Sum().Item(), want[i].Sum().Item())
			}
		}
	}
	return nil
}

// TestMemoryOfProcesses holds the bounds of TestMemory, and those of loading and of the optimiser, where two processes
// really communicate: the allocator's counters are per process. The parts that a reduce-scatter receives before it sums them
// up come on top: one block.
func TestMemoryOfProcesses(t *testing.T) {
	for _, role := range []string{"memory", "memory, direct", "memory, keep"} {
		t.Run(role, func(t *testing.T) {
			for rank, p := range startRanks(t, 2, role) {
				if code := p.end(t, 2*time.Minute); code != 0 {
					t.Errorf("rank %d: %v\n%s", rank, p.ProcessState, p.output())
				}
			}
		})
	}
}

var memorySize = towerSize{width: 512, inner: 2048, frozen: 8, vocabulary: 64, layers: 6}

// memoryRank trains two steps. forward and backward are the numbers of blocks that are allowed beside what no block holds
// and the sharded parameters, states and gradients.
func memoryRank(ctx context.Context, g dist.Group, config fsdp.Config, forward, backward int64) error {
	const elem, slack = 4, 1 << 20
	s := memorySize
	block := (s.inner*s.width + s.width) * elem
	rest := (s.width*s.width + s.vocabulary*s.width) * elem
	sharded := (s.layers*block + rest) / 2
	debug.SetGCPercent(-1)
	base := torch.MemoryStats().LiveBytes
	var errs []error
	check := func(what string, got, limit int64) {
		fmt.Printf("%s: %.1f MiB of %.1f\n", what, float64(got-base)/(1<<20), float64(limit)/(1<<20))
		if got-base > limit+slack {
			errs = append(errs, fmt.Errorf("%s: %d bytes, limit %d", what, got-base, limit))
		}
	}
	peak := func(what string, limit int64, f func()) {
		torch.ResetPeak()
		f()
		check(what, torch.MemoryStats().PeakBytes, limit)
	}
	before, device := sharded, torch.Meta
	if g.Rank() == 0 { // has everything
		before, device = 2*sharded, torch.CPU
	}
	n := newTower(s, device, torch.Float32)
	config.Units, config.SyncModuleStates = fsdp.ByType[*storey](), true
	var m *fsdp.Model
	var err error
	peak("init", before+block, func() { m, err = fsdp.Wrap(n, g, config) })
	if err != nil {
		return err
	}
	if err := m.Load(); err != nil {
		return err
	}
	check("after init", torch.MemoryStats().LiveBytes, sharded)
	opt, err := optim.NewAdamW(nn.Params(n), optim.AdamConfig{LR: 1e-3})
	if err != nil {
		return err
	}
	states := int64(0)
	for range 2 {
		peak("forward without gradients", sharded+states+3*block+rest, func() {
			err = torch.Try(func() { torch.NoGrad(func() { torch.Throw(oneForward(n, s.width)) }) })
		})
		if err != nil {
			return err
		}
		scope := torch.NewScope(nil)
		err = torch.Try(func() {
			var loss *torch.Tensor
			peak("forward", sharded+states+forward*block+rest, func() {
				x := scope.Own(torch.Ones(torch.Float32, 1, s.width))
				loss = nn.Run(n, &nn.Call{Context: ctx, Scope: scope, Training: true}, x)
			})
			peak("backward", 2*sharded+states+(backward+1)*block+rest, func() { loss.Backward() })
		})
		scope.Close()
		if err != nil {
			return err
		}
		check("after backward", torch.MemoryStats().LiveBytes, states+2*sharded)
		peak("optimiser's step", 4*sharded, func() { err = torch.Try(opt.Step) })
		if err != nil {
			return err
		}
		states = 2 * sharded
		m.ZeroGrad()
		check("after the step", torch.MemoryStats().LiveBytes, 3*sharded)
	}
	return errors.Join(errs...)
}
