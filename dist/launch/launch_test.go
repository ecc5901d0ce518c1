package launch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/dist/launch"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// The test binary is also the programs that the tests start.
func TestMain(m *testing.M) {
	switch os.Getenv("LAUNCH_TEST_ROLE") {
	case "launcher": // of the script in the environment
		err := launch.Launch(context.Background(), launch.Options{NumProcesses: 2, GracePeriod: 300 * time.Millisecond},
			[]string{"sh", "-c", os.Getenv("LAUNCH_TEST_SCRIPT")})
		if failed := (*launch.RankError)(nil); errors.As(err, &failed) {
			os.Exit(failed.ExitCode())
		}
		os.Exit(0)
	case "env": // prints its place
		e, err := dist.FromEnv()
		fmt.Println(e, e.UseAgentStore, e.RestartCount, err)
		os.Exit(0)
	case "reason": // fails and leaves its reason
		e, err := dist.FromEnv()
		if err == nil && e.Rank == 1 {
			_ = e.WriteErrorFile(errors.New("rank 1 is out of memory"))
			os.Exit(7)
		}
		time.Sleep(time.Minute)
	}
	goleak.VerifyTestMain(m)
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// self starts this binary in a role.
func self(t *testing.T, role string) []string {
	t.Setenv("LAUNCH_TEST_ROLE", role)
	exe, err := os.Executable()
	require.NoError(t, err)
	return []string{exe}
}

func TestRanksGetTorchrunsEnvironment(t *testing.T) {
	var out bytes.Buffer
	o := launch.Options{NumProcesses: 4, NumMachines: 2, MachineRank: 1, MasterAddr: "head", Stdout: &out, Env: []string{"EXTRA=1"}}
	require.NoError(t, launch.Launch(t.Context(), o, self(t, "env")))
	require.Contains(t, out.String(), "[rank 2] rank 2/4 (local 0/2, node 1/2, master head:29500, from torchrun) false 0 <nil>\n")
	require.Contains(t, out.String(), "[rank 3] rank 3/4 (local 1/2, node 1/2")

	out.Reset()
	require.NoError(t, launch.Launch(t.Context(), launch.Options{Stdout: &out}, self(t, "env")))
	require.Contains(t, out.String(), "rank 0/1 (local 0/1, node 0/1, master 127.0.0.1:")
	require.NotContains(t, out.String(), "[rank", "rank 0 has no prefix")

	out.Reset()
	require.NoError(t, launch.Launch(t.Context(), launch.Options{Stdout: &out, Env: []string{"EXTRA=a b"}}, sh(`echo "$EXTRA"`)))
	require.Equal(t, "a b\n", out.String())
}

func TestFirstFailureIsNamedAndStopsTheRest(t *testing.T) {
	for name, test := range map[string]struct {
		script  string
		code    int
		message string
	}{
		"exit status":    {`[ $RANK = 1 ] && { echo "first" >&2; echo "disk is full" >&2; exit 3; }; exec sleep 60`, 3, "exit status 3: disk is full"},
		"signal":         {`[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60`, 128 + 11, "signal 11 (segmentation fault)"},
		"killed":         {`[ $RANK = 1 ] && { echo "step 7" >&2; kill -KILL $$; }; exec sleep 60`, 128 + 9, "signal 9 (killed): it could not say why; the kernel does this where memory runs out"},
		"Go crash":       {`[ $RANK = 1 ] && { echo "panic: index out of range" >&2; echo "gs 0x0" >&2; exit 2; }; exec sleep 60`, 2, "exit status 2: panic: index out of range"},
		"ignoring TERM":  {`trap "" TERM; [ $RANK = 1 ] && exit 4; while :; do sleep 0.1; done`, 4, "exit status 4"},
		"with a progeny": {`[ $RANK = 1 ] && { sleep 0.2; exit 5; }; sh -c 'trap "" TERM; while :; do sleep 0.1; done' & wait`, 5, "exit status 5"},
	} {
		t.Run(name, func(t *testing.T) {
			pids := t.TempDir()
			var out, stderr bytes.Buffer
			start := time.Now()
			err := launch.Launch(t.Context(), launch.Options{NumProcesses: 2, GracePeriod: 200 * time.Millisecond, Stdout: &out, Stderr: &stderr},
				sh(fmt.Sprintf("cd %s; echo $$ > $RANK; while [ ! -s 0 -o ! -s 1 ]; do sleep 0.01; done; ", pids)+test.script))
			require.Less(t, time.Since(start), 20*time.Second)
			var failed *launch.RankError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, 1, failed.Rank)
			require.Equal(t, test.code, failed.ExitCode())
			require.ErrorContains(t, err, "rank 1: "+test.message)
			requireGone(t, pids)
		})
	}
}

// requireGone checks that the process groups whose numbers are in the files of dir have no member.
func requireGone(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !alive(pid) }, 5*time.Second, 10*time.Millisecond, "group %d is left", pid)
	}
}

// alive reports whether the group has a member that is not a zombie waiting for init.
func alive(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

func TestErrorFileIsTheReason(t *testing.T) {
	var out bytes.Buffer
	err := launch.Launch(t.Context(), launch.Options{NumProcesses: 2, Stdout: &out, Stderr: &out}, self(t, "reason"))
	require.EqualError(t, err, "launch: rank 1: exit status 7: rank 1 is out of memory")
}

func TestRestart(t *testing.T) {
	var out, stderr bytes.Buffer
	script := `echo "try $TORCHELASTIC_RESTART_COUNT"; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 9`
	o := launch.Options{NumProcesses: 1, MaxRestarts: 2, Stdout: &out, Stderr: &stderr}
	require.NoError(t, launch.Launch(t.Context(), o, sh(script)))
	require.Equal(t, "try 0\ntry 1\ntry 2\n", out.String())
	require.Contains(t, stderr.String(), "restart 2 of 2")

	o.MaxRestarts = 1
	require.ErrorContains(t, launch.Launch(t.Context(), o, sh(script)), "exit status 9")
}

func TestLinesDoNotMix(t *testing.T) {
	var out bytes.Buffer
	script := `for i in 1 2 3 4 5 6 7 8 9; do printf 'rank %s ' $RANK; printf 'line %s\n' $i; done; printf 'no end'`
	require.NoError(t, launch.Launch(t.Context(), launch.Options{NumProcesses: 3, Stdout: &out}, sh(script)))
	for _, rank := range []string{"1", "2"} {
		require.Equal(t, 9, strings.Count(out.String(), "[rank "+rank+"] rank "+rank+" line "))
		require.Contains(t, out.String(), "[rank "+rank+"] no end\n")
	}
}

func TestRankZeroKeepsTheFile(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, launch.Launch(t.Context(), launch.Options{Stdout: file}, sh("readlink /proc/self/fd/1")))
	data, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Equal(t, file.Name()+"\n", string(data), "not a pipe, so that a terminal stays one")
}

func TestCancelledContextStopsRanks(t *testing.T) {
	cause := errors.New("the service shuts down")
	for script, wants := range map[string]error{
		`trap "exit 0" TERM; echo up; while :; do sleep 0.05; done`: nil, // saved and ended well
		`trap "" TERM; echo up; while :; do sleep 0.05; done`:       cause,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		ups := 0 // both ranks have set their traps
		o := launch.Options{NumProcesses: 2, StopPeriod: 300 * time.Millisecond, Stdout: writerFunc(func(b []byte) {
			if ups += bytes.Count(b, []byte("up")); ups == 2 {
				cancel(cause)
			}
		})}
		err := launch.Launch(ctx, o, sh(script))
		require.ErrorIs(t, err, wants)
		cancel(nil)
	}
}

type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

func TestSignalsGoOnOnce(t *testing.T) {
	dir := t.TempDir()
	cmd := launcher(t, fmt.Sprintf(`trap 'echo x >> %[1]s/got$RANK; sleep 0.2; exit 6' INT; echo $$ > %[1]s/pid$RANK; while :; do sleep 0.05; done`, dir))
	require.NoError(t, cmd.Start())
	waitFor(t, filepath.Join(dir, "pid*"), 2)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, 6, cmd.ProcessState.ExitCode())
	for _, rank := range []string{"0", "1"} {
		got, err := os.ReadFile(filepath.Join(dir, "got"+rank))
		require.NoError(t, err)
		require.Equal(t, "x\n", string(got))
	}
}

func TestSecondSignalKills(t *testing.T) {
	dir := t.TempDir()
	cmd := launcher(t, fmt.Sprintf(`trap 'echo > %[1]s/got$RANK' TERM; echo $$ > %[1]s/pid$RANK; while :; do sleep 0.05; done`, dir))
	require.NoError(t, cmd.Start())
	waitFor(t, filepath.Join(dir, "pid*"), 2)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	waitFor(t, filepath.Join(dir, "got*"), 2)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait())
	require.Equal(t, 128+9, cmd.ProcessState.ExitCode())
}

func TestKilledLauncherLeavesNoRank(t *testing.T) {
	dir := t.TempDir()
	cmd := launcher(t, fmt.Sprintf(`trap "" TERM INT HUP; echo $$ > %s/$RANK; exec sleep 60`, dir))
	require.NoError(t, cmd.Start())
	waitFor(t, filepath.Join(dir, "*"), 2)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	requireGone(t, dir)
}

// launcher is a process that launches script on two ranks.
func launcher(t *testing.T, script string) *exec.Cmd {
	cmd := exec.Command(self(t, "launcher")[0])
	cmd.Env = append(os.Environ(), "LAUNCH_TEST_SCRIPT="+script)
	return cmd
}

// waitFor waits until n files match, and have something in them.
func waitFor(t *testing.T, pattern string, n int) {
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(pattern)
		full := 0
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				full++
			}
		}
		return err == nil && full == n
	}, 10*time.Second, 10*time.Millisecond)
}

func TestWrongOptionsAndPrograms(t *testing.T) {
	for name, test := range map[string]struct {
		o    launch.Options
		argv []string
		want string
	}{
		"no program":      {launch.Options{}, nil, "no program"},
		"missing program": {launch.Options{NumProcesses: 2}, []string{"/nonexistent/program"}, "start rank 0"},
		"uneven":          {launch.Options{NumProcesses: 3, NumMachines: 2, MasterAddr: "a"}, sh("true"), "split evenly"},
		"machine rank":    {launch.Options{NumMachines: 2, MachineRank: 2, MasterAddr: "a"}, sh("true"), "machine rank 2"},
		"no address":      {launch.Options{NumMachines: 2}, sh("true"), "main_process_ip"},
		"restarts":        {launch.Options{NumMachines: 2, MasterAddr: "a", MaxRestarts: 1}, sh("true"), "torchrun"},
		"port":            {launch.Options{MasterPort: 1 << 20}, sh("true"), "not a port"},
		"too many":        {launch.Options{NumProcesses: 100_000_000}, sh("true"), "100000000 processes on one machine"},
		"negative":        {launch.Options{NumProcesses: -1}, sh("true"), "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, launch.Launch(t.Context(), test.o, test.argv), test.want)
		})
	}
}

func TestNumGPUs(t *testing.T) {
	for list, want := range map[string]int{"": 0, "-1": 0, "0": 1, "3,1": 2, "GPU-a,GPU-b": 2} {
		t.Setenv("CUDA_VISIBLE_DEVICES", list)
		require.Equal(t, want, launch.NumGPUs(), list)
	}
}
