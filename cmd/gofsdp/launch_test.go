package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/dist/launch"
	"github.com/stretchr/testify/require"
)

// The test binary stands in for gofsdp when launch starts it again. Arguments that are no flags of a test binary show
// that too: otherwise a launch inside a test would start all tests again, without end.
func TestMain(m *testing.M) {
	if os.Getenv("GOFSDP_TEST_MAIN") != "" || len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		main()
	}
	os.Exit(m.Run())
}

func TestLaunchRunsAProgram(t *testing.T) {
	dir := t.TempDir()
	script := `echo "$RANK of $WORLD_SIZE $1 $ACCELERATE_MIXED_PRECISION" > ` + dir + `/$RANK`
	require.Zero(t, run([]string{"launch", "--num_processes", "2", "--mixed_precision=BF16", "--", "sh", "-c", script, "sh", "--flag"}))
	for rank, want := range []string{"0 of 2 --flag bf16\n", "1 of 2 --flag bf16\n"} {
		got, err := os.ReadFile(filepath.Join(dir, string(rune('0'+rank))))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	require.Equal(t, 3, run([]string{"launch", "sh", "-c", "exit 3"}), "the rank's status is the launcher's")
}

func TestLaunchRunsACommandOfItsOwn(t *testing.T) {
	require.Zero(t, run([]string{"launch", "doctor", "--help"}), "flags after the command are the command's")
	require.Equal(t, 1, run([]string{"launch", "launch", "x"}))

	argv, err := (&launchCmd{Command: []string{"--", "sft", "a.yaml"}}).argv(commandNames{"launch", "sft"})
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, []string{self, "sft", "a.yaml"}, argv)
}

func TestFlagsGoBeforeTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fsdp.yaml")
	require.NoError(t, os.WriteFile(file, []byte("num_processes: 4\nnum_machines: 2\nmain_process_ip: head\nmachine_rank: 1\n"+
		"mixed_precision: no\nfsdp_config:\n  fsdp_offload_params: true\n"), 0o644))
	o, err := (&launchCmd{ConfigFile: file}).options()
	require.NoError(t, err)
	require.Equal(t, launch.Options{NumProcesses: 4, NumMachines: 2, MachineRank: 1, MasterAddr: "head",
		Env: []string{"ACCELERATE_MIXED_PRECISION=no", "ACCELERATE_USE_FSDP=True", "FSDP_OFFLOAD_PARAMS=True"}}, o)

	first := 0
	o, err = (&launchCmd{ConfigFile: file, NumProcesses: 8, MachineRank: &first, MainProcessPort: 1234, MixedPrecision: "bf16"}).options()
	require.NoError(t, err)
	require.Equal(t, 8, o.NumProcesses)
	require.Zero(t, o.MachineRank)
	require.Equal(t, 1234, o.MasterPort)
	require.Contains(t, o.Env, "ACCELERATE_MIXED_PRECISION=bf16")

	_, err = (&launchCmd{NumMachines: 2}).options()
	require.ErrorContains(t, err, "main_process_ip")
}

func TestUsage(t *testing.T) {
	require.Equal(t, 2, run([]string{"no-such-command"}))
	require.Equal(t, 2, run([]string{"launch"}))
}
