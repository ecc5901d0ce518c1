package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/errorfile"
)

// job is one attempt: the ranks of this machine, from their start to the end of the last.
type job struct {
	o       Options
	argv    []string
	signals <-chan os.Signal
	ranks   []*process
	screen  sync.Mutex // one line at a time
	stopped bool       // by a signal or by the context, not by a failure
}

// process is one rank.
type process struct {
	rank      int
	cmd       *exec.Cmd
	out, err  *lineWriter
	errorFile string
	state     error // what Wait returned

	mu    sync.Mutex
	ended bool // it is about to be reaped, and its number may soon be another process's
}

func (j *job) add(local int, env []string) {
	rank := j.o.MachineRank*j.o.localWorld() + local
	cmd := exec.Command(j.argv[0], j.argv[1:]...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // a signal reaches the rank and what it started, and not the launcher
		Pdeathsig: syscall.SIGKILL, // if the launcher is killed
	}
	// A grandchild that left the group may keep our pipes open: do not wait for it.
	cmd.WaitDelay = 2 * time.Second
	p := &process{rank: rank, cmd: cmd, errorFile: value(env, "TORCHELASTIC_ERROR_FILE")}
	prefix := ""
	if rank != 0 {
		prefix = fmt.Sprintf("[rank %d] ", rank)
	}
	p.err = &lineWriter{out: j.o.Stderr, mu: &j.screen, prefix: prefix}
	cmd.Stderr = p.err
	if terminal, ok := j.o.Stdout.(*os.File); ok && rank == 0 {
		cmd.Stdout = terminal
	} else {
		p.out = &lineWriter{out: j.o.Stdout, mu: &j.screen, prefix: prefix}
		cmd.Stdout = p.out
	}
	j.ranks = append(j.ranks, p)
}

// run starts the ranks and sees them through.
func (j *job) run(ctx context.Context) error {
	ended := make(chan *process)
	alive := make(chan struct{})
	started := make(chan error)
	// The kernel sends Pdeathsig when the *thread* that forked ends: it must live as long as the ranks.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- j.start()
		<-alive
	}()
	defer close(alive)
	startErr := <-started
	running := 0
	for _, p := range j.ranks {
		if p.cmd.Process != nil {
			running++
			go func() { ended <- p.wait() }()
		}
	}

	first := startErr
	var kill <-chan time.Time
	stop := func(sig syscall.Signal, grace time.Duration) {
		j.signal(sig)
		kill = time.After(grace)
	}
	if startErr != nil {
		stop(syscall.SIGTERM, j.o.GracePeriod)
	}
	done := ctx.Done()
	for running > 0 {
		select {
		case p := <-ended:
			running--
			if failed := p.failure(); failed != nil && first == nil {
				first = failed
				if !j.stopped {
					stop(syscall.SIGTERM, j.o.GracePeriod)
				}
			}
		case sig := <-j.signals:
			if j.stopped {
				j.signal(syscall.SIGKILL)
				break
			}
			j.stopped = true
			stop(sig.(syscall.Signal), j.o.StopPeriod)
		case <-done:
			done = nil
			if !j.stopped {
				j.stopped = true
				stop(syscall.SIGTERM, j.o.StopPeriod)
			}
		case <-kill:
			j.signal(syscall.SIGKILL)
		}
	}
	if first != nil && ctx.Err() != nil && startErr == nil {
		return errors.Join(context.Cause(ctx), first)
	}
	return first
}

func (j *job) start() error {
	for _, p := range j.ranks {
		if err := p.cmd.Start(); err != nil {
			return fmt.Errorf("launch: start rank %d: %w", p.rank, err)
		}
	}
	return nil
}

// signal sends sig to the group of every rank that has not been waited for.
func (j *job) signal(sig syscall.Signal) {
	for _, p := range j.ranks {
		if p.cmd.Process == nil {
			continue
		}
		p.mu.Lock()
		if !p.ended {
			_ = syscall.Kill(-p.cmd.Process.Pid, sig) // ESRCH: the group is gone
		}
		p.mu.Unlock()
	}
}

// wait waits for the rank and kills what is left of its group.
func (p *process) wait() *process {
	pid := p.cmd.Process.Pid
	waitWithoutReaping(pid)
	// As long as the rank is not reaped, its number, and with it its group's, is not given to another process.
	p.mu.Lock()
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	p.ended = true
	p.mu.Unlock()
	p.state = p.cmd.Wait()
	p.err.flush()
	if p.out != nil {
		p.out.flush()
	}
	return p
}

// waitWithoutReaping returns when the child has ended, and leaves its status for Wait.
func waitWithoutReaping(pid int) {
	const pPID = 1
	var info [128]byte // siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
			syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}

// failure is nil if the rank succeeded.
func (p *process) failure() error {
	if p.state == nil || errors.Is(p.state, exec.ErrWaitDelay) {
		return nil
	}
	exit := (*exec.ExitError)(nil)
	if !errors.As(p.state, &exit) {
		return fmt.Errorf("launch: rank %d: %w", p.rank, p.state)
	}
	failed := &RankError{Rank: p.rank, Code: exit.ExitCode()}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		failed.Signal = status.Signal()
	}
	if text, err := errorfile.Read(p.errorFile); err == nil {
		failed.Message = text
		return failed
	}
	switch {
	case failed.Signal == syscall.SIGKILL: // its last line has nothing to do with it
		failed.Message = "it could not say why; the kernel does this where memory runs out"
	case p.err.crash != "":
		failed.Message = p.err.crash
	default:
		failed.Message = p.err.last
	}
	return failed
}
