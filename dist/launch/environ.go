package launch

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// environ is the environment of one rank: this process's, o.Env, and the variables that torchrun sets.
func (o *Options) environ(local, port, attempt int, runID, errorFile string) []string {
	env := append(os.Environ(), o.Env...)
	world, here := o.NumProcesses, o.localWorld()
	rank := o.MachineRank*here + local
	set := func(name, value string) { env = append(env, name+"="+value) }
	number := func(name string, n int) { set(name, strconv.Itoa(n)) }

	number("RANK", rank)
	number("LOCAL_RANK", local)
	number("WORLD_SIZE", world)
	number("LOCAL_WORLD_SIZE", here)
	number("GROUP_RANK", o.MachineRank)
	number("GROUP_WORLD_SIZE", o.NumMachines)
	number("ROLE_RANK", rank)
	number("ROLE_WORLD_SIZE", world)
	set("ROLE_NAME", "default")
	set("MASTER_ADDR", o.MasterAddr)
	number("MASTER_PORT", port)
	number("TORCHELASTIC_RESTART_COUNT", attempt)
	number("TORCHELASTIC_MAX_RESTARTS", o.MaxRestarts)
	set("TORCHELASTIC_RUN_ID", runID)
	set("TORCHELASTIC_ERROR_FILE", errorFile)
	// The launcher serves no store: rank 0 does, as in a job without torchrun.
	set("TORCHELASTIC_USE_AGENT_STORE", "False")
	if !has(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING") {
		number("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1)
	}
	// torchrun sets 1. Ranks that train on CPUs would then leave most of the machine idle, so ours share it.
	if here > 1 && !has(env, "OMP_NUM_THREADS") {
		number("OMP_NUM_THREADS", max(runtime.NumCPU()/here, 1))
	}
	return env
}

func has(env []string, name string) bool {
	for _, entry := range env {
		if strings.HasPrefix(entry, name+"=") {
			return true
		}
	}
	return false
}
