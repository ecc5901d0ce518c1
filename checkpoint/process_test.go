package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// Some tests need a process to kill or to limit: they start the test binary again with this variable, which names the
// part that the process plays.
const roleVariable = "GOFSDP_TEST_CHECKPOINT_ROLE"

func TestMain(m *testing.M) {
	role, root, _ := strings.Cut(os.Getenv(roleVariable), ":")
	switch role {
	case "save forever":
		fmt.Println(saveForever(root))
		os.Exit(1)
	case "load synthetic":
		if err := loadSynthetic(root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	case "rank 0 over the limit", "rank 1 over the limit", "rank 0 over the limit in the background", "rank 1 over the limit in the background":
		if err := saveOverLimit(root, int(role[5]-'0'), strings.HasSuffix(role, "background")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, role, root string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role+":"+root)
	cmd.Stderr = os.Stderr
	return cmd
}

// saveForever saves from two ranks, starting after the latest checkpoint, every second step twice, every third once
// more in the background, in both formats, and prints each step once it is saved.
func saveForever(root string) error {
	_, start, err := Latest(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return ranktest.Ranks(context.Background(), 2, func(ctx context.Context, g dist.Group) error {
		for step := start + 1; ; step++ {
			o := SaveOptions{TotalLimit: 2, Format: Format(step / 3 % 2)}
			for range 1 + step%2 {
				if _, err := Save(ctx, g, root, step, snapshot(fsdp.ShardRows, g, step), o); err != nil {
					return err
				}
			}
			if step%3 == 0 { // again, in the background
				saver := &Saver{Group: g, Root: root, Options: o}
				if _, err := saver.Start(ctx, step, snapshot(fsdp.ShardRows, g, step)); err != nil {
					return err
				}
				if _, err := saver.Wait(ctx); err != nil {
					return err
				}
			}
			if g.Rank() == 0 {
				fmt.Println(step)
			}
		}
	})
}

func TestKilledWhileSaving(t *testing.T) {
	const lanes = 4 // at the same time, each with its own folder
	kills := 5
	if os.Getenv("GOFSDP_LONG") == "1" {
		kills = 50
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var stale atomic.Int64
	t.Run("lanes", func(t *testing.T) {
		for lane := range lanes {
			t.Run(strconv.Itoa(lane), func(t *testing.T) {
				t.Parallel()
				root := t.TempDir()
				random := rand.New(rand.NewPCG(seed, uint64(lane)))
				for range kills {
					killOne(t, root, time.Duration(random.IntN(60_000))*time.Microsecond)
					left, err := filepath.Glob(filepath.Join(root, "tmp-*"))
					require.NoError(t, err)
					stale.Add(int64(len(left)))
				}
			})
		}
	})
	require.Positive(t, stale.Load(), "no kill hit a save: the test proves nothing")
	t.Logf("%d of %d kills left a temporary folder", stale.Load(), lanes*kills)
}

// killOne kills a process some time after its first save, and checks what it leaves.
func killOne(t *testing.T, root string, delay time.Duration) {
	cmd := child(t, "save forever", root)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(t, err, "%s", line)
	time.Sleep(delay)
	require.NoError(t, cmd.Process.Kill())
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())

	printed := strings.Fields(line + string(rest))
	saved, err := strconv.Atoi(printed[len(printed)-1])
	require.NoError(t, err, "%q", printed)
	dir, step, err := Latest(root)
	require.NoError(t, err)
	require.GreaterOrEqual(t, step, saved, "a checkpoint that Save reported is lost")
	require.LessOrEqual(t, step, saved+1)
	require.NoError(t, loadRank(t.Context(), dist.NewSingle(), dir, step, replicated))
	list, err := List(root)
	require.NoError(t, err)
	for _, f := range list {
		require.NoError(t, f.Err, "a visible checkpoint is incomplete")
	}
}

// saveOverLimit lets one of two ranks run into the limit on the size of files, which is how a full disk looks to it.
func saveOverLimit(root string, full int, background bool) error {
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	errs := make([]error, 2)
	var mu sync.Mutex
	err := ranktest.Ranks(context.Background(), 2, func(ctx context.Context, g dist.Group) error {
		s := snapshot(fsdp.ShardRows, g, 2)
		if g.Rank() == full {
			s.RankState = append(s.RankState, Whole("large", torch.Zeros(torch.Uint8, 1<<20)))
		}
		save := func() error {
			_, err := Save(ctx, g, root, 2, s, SaveOptions{TotalLimit: 1})
			return err
		}
		if background {
			save = func() error {
				saver := &Saver{Group: g, Root: root, Options: SaveOptions{TotalLimit: 1}}
				if _, err := saver.Start(ctx, 2, s); err != nil {
					return fmt.Errorf("too early: %w", err)
				}
				_, err := saver.Wait(ctx)
				return err
			}
		}
		err := save()
		mu.Lock()
		defer mu.Unlock()
		errs[g.Rank()] = err
		return nil
	})
	if err != nil {
		return err
	}
	var other *RankError
	if !errors.Is(errs[full], syscall.EFBIG) || !errors.As(errs[1-full], &other) || other.Rank != full && !background {
		return fmt.Errorf("rank 0: %w\nrank 1: %w", errs[0], errs[1])
	}
	return nil
}

func TestDiskFullOnOneRank(t *testing.T) {
	root := t.TempDir()
	dir := saveAt(t, root, 1, 2, fsdp.ShardRows, SaveOptions{})
	for full := range 2 {
		out, err := child(t, fmt.Sprintf("rank %d over the limit", full), root).Output()
		require.NoError(t, err, "%s", out)
		requireOnly(t, root, "checkpoint-1")
		loadAt(t, dir, 1, 2, fsdp.ShardRows)
	}
}
