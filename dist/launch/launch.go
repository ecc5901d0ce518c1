// Package launch starts the ranks of a job on this machine, as torchrun does, and ends them together.
//
// Each rank is a process with torchrun's environment variables (dist.FromEnv reads them; Python programs work as
// well). The first rank that fails takes the others with it: they get SIGTERM, and SIGKILL after a grace period.
// SIGINT and SIGTERM to the launcher go on to the ranks once, so that they can save their work; a second one
// kills them. No rank outlives the launcher, whatever it ignores and however the launcher ends.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultPort is the port of rank 0's store on several machines, where all must know it beforehand.
const DefaultPort = 29500

// Options configures Launch. The zero value is one rank.
type Options struct {
	NumProcesses int // ranks on all machines together, a multiple of NumMachines; 0 is one per machine
	NumMachines  int // 0 is 1
	MachineRank  int // which of the machines this is

	MasterAddr string // address of machine 0; "" is 127.0.0.1 on one machine, and an error on several
	MasterPort int    // of rank 0's store; 0 is a free port on one machine, and DefaultPort on several

	MaxRestarts int // how often to start all ranks again after a failure; one machine only

	Env    []string  // KEY=VALUE, added to this process's environment
	Stdout io.Writer // nil is os.Stdout; rank 0 gets it as it is if it is a file, so that a terminal stays one
	Stderr io.Writer // nil is os.Stderr

	// GracePeriod is the time between SIGTERM and SIGKILL after a rank has failed. 0 is 30 seconds.
	GracePeriod time.Duration
	// StopPeriod is that time after a signal to the launcher or the end of its context, when ranks save a
	// checkpoint. 0 is 5 minutes.
	StopPeriod time.Duration
}

// RankError is a rank that failed.
type RankError struct {
	Rank    int
	Code    int            // exit status; -1 if a signal ended it
	Signal  syscall.Signal // which one
	Message string         // from its error file, else its last line on stderr
}

func (e *RankError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Code)
	if e.Code < 0 {
		how = fmt.Sprintf("signal %d (%v)", int(e.Signal), e.Signal)
	}
	if e.Message == "" {
		return fmt.Sprintf("launch: rank %d: %s", e.Rank, how)
	}
	return fmt.Sprintf("launch: rank %d: %s: %s", e.Rank, how, e.Message)
}

// ExitCode is the status with which a launcher should exit: the rank's, as a shell would tell it.
func (e *RankError) ExitCode() int {
	if e.Code < 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// Launch runs argv once per rank of this machine and returns when all have ended: nil if all succeeded, else a
// *RankError for the first that failed. If ctx ends, ranks get SIGTERM as for a signal, and the error is ctx's
// cause unless they all end well.
func Launch(ctx context.Context, o Options, argv []string) error {
	if err := o.fill(argv); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	errorDir, err := os.MkdirTemp("", "gofsdp-launch-*")
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	defer os.RemoveAll(errorDir)

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	runID := strconv.Itoa(os.Getpid())
	for attempt := 0; ; attempt++ {
		port := o.MasterPort
		if port == 0 {
			if port, err = freePort(); err != nil {
				return fmt.Errorf("launch: %w", err)
			}
		}
		job := &job{o: o, argv: argv, signals: signals}
		for local := range o.localWorld() {
			dir := filepath.Join(errorDir, fmt.Sprintf("attempt_%d", attempt), strconv.Itoa(local))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("launch: %w", err)
			}
			job.add(local, o.environ(local, port, attempt, runID, filepath.Join(dir, "error.json")))
		}
		err := job.run(ctx)
		if failed := (*RankError)(nil); !errors.As(err, &failed) || job.stopped || attempt == o.MaxRestarts {
			return err
		}
		fmt.Fprintf(o.Stderr, "%v; restart %d of %d\n", err, attempt+1, o.MaxRestarts)
	}
}

// maxLocal bounds the ranks of one machine, far above what any has GPUs or cores for.
const maxLocal = 1024

func (o *Options) fill(argv []string) error {
	if len(argv) == 0 {
		return errors.New("no program to start")
	}
	if o.NumMachines == 0 {
		o.NumMachines = 1
	}
	if o.NumProcesses == 0 {
		o.NumProcesses = o.NumMachines
	}
	switch {
	case o.NumMachines < 0 || o.NumProcesses < 0 || o.MaxRestarts < 0:
		return fmt.Errorf("negative counts: %d processes, %d machines, %d restarts", o.NumProcesses, o.NumMachines, o.MaxRestarts)
	case o.NumProcesses%o.NumMachines != 0:
		return fmt.Errorf("%d processes cannot be split evenly over %d machines", o.NumProcesses, o.NumMachines)
	case o.localWorld() > maxLocal:
		return fmt.Errorf("%d processes on one machine; at most %d are possible", o.localWorld(), maxLocal)
	case o.MachineRank < 0 || o.MachineRank >= o.NumMachines:
		return fmt.Errorf("machine rank %d is not in 0 … %d", o.MachineRank, o.NumMachines-1)
	case o.NumMachines > 1 && o.MasterAddr == "":
		return errors.New("several machines need the address of machine 0 (main_process_ip)")
	case o.NumMachines > 1 && o.MaxRestarts > 0:
		return errors.New("restarts on several machines need a rendezvous: use torchrun --no-python")
	case o.MasterPort < 0 || o.MasterPort > 65535:
		return fmt.Errorf("%d is not a port", o.MasterPort)
	}
	if o.MasterAddr == "" {
		o.MasterAddr = "127.0.0.1"
	}
	if o.MasterPort == 0 && o.NumMachines > 1 {
		o.MasterPort = DefaultPort
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.GracePeriod == 0 {
		o.GracePeriod = 30 * time.Second
	}
	if o.StopPeriod == 0 {
		o.StopPeriod = 5 * time.Minute
	}
	return nil
}

func (o *Options) localWorld() int { return o.NumProcesses / o.NumMachines }

// freePort asks the system for a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// NumGPUs counts the NVIDIA GPUs that ranks can use: the entries of CUDA_VISIBLE_DEVICES if it is set, else the
// devices of the driver.
func NumGPUs() int {
	if list, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		list = strings.TrimSpace(list)
		if list == "" || strings.HasPrefix(list, "-") || list == "NoDevFiles" {
			return 0
		}
		return strings.Count(list, ",") + 1
	}
	devices, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return 0
	}
	return len(devices)
}
