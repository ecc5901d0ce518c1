package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/stretchr/testify/require"
)

// rankProcess finds the process of a rank among the children of a launcher.
func rankProcess(launcher, rank int) (pid int, ok bool) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(launcher) {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if bytes.Contains(environ, fmt.Appendf(nil, "\x00RANK=%d\x00", rank)) {
			pid, _ = strconv.Atoi(filepath.Base(dir))
			return pid, true
		}
	}
	return 0, false
}

// A rank that is killed takes the others down within seconds: nobody waits in a collective, and the launcher names it.
func TestSftEndsWhenARankDies(t *testing.T) {
	out := t.TempDir()
	command := exec.Command(os.Args[0], "launch", "--num_processes", "2", "sft", "--model_name_or_path", tinyModel(t),
		"--dataset_name", conversations(t), "--output_dir", out, "--max_steps", "1000000", "--save_steps", "5",
		"--save_total_limit", "2", "--use_peft_lora", "--per_device_train_batch_size", "2")
	command.Env = append(os.Environ(), "GOFSDP_TEST_MAIN=1")
	var text bytes.Buffer
	command.Stdout, command.Stderr = &text, &text
	require.NoError(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	require.Eventually(t, func() bool {
		_, step, err := checkpoint.Latest(out)
		return err == nil && step >= 10
	}, time.Minute, 10*time.Millisecond)
	victim, ok := rankProcess(command.Process.Pid, 1)
	require.True(t, ok)
	other, ok := rankProcess(command.Process.Pid, 0)
	require.True(t, ok)
	require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(20 * time.Second):
		_ = command.Process.Kill()
		t.Fatal("the launcher still waits")
	}
	require.Contains(t, text.String(), "rank 1")
	require.ErrorIs(t, syscall.Kill(other, 0), syscall.ESRCH, "rank 0 is left behind")
	dir, _, err := checkpoint.Latest(out)
	require.NoError(t, err)
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// Two jobs cannot share a port: the second one says which port is taken.
func TestSftReportsATakenPort(t *testing.T) {
	listener := listen(t)
	port := strconv.Itoa(listener)
	t.Setenv("GOFSDP_TEST_MAIN", "1")
	status, _, stderr := output(t, "", "launch", "--num_processes", "2", "--main_process_port", port, "sft",
		"--model_name_or_path", tinyModel(t), "--dataset_name", conversations(t), "--output_dir", t.TempDir(), "--ddp_timeout", "5")
	require.NotZero(t, status)
	require.Contains(t, stderr, port)
}

// listen takes a port until the test ends.
func listen(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}
