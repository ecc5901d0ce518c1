package dist

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/errorfile"
)

// DefaultMasterPort is the port of the store where nothing names one, as in PyTorch.
const DefaultMasterPort = 29500

// Env is a rank's place in the job, as its launcher described it in environment variables.
type Env struct {
	Rank           int // 0 … WorldSize-1
	WorldSize      int
	LocalRank      int // among the ranks of this machine; chooses the GPU
	LocalWorldSize int
	NodeRank       int // which of the machines this is
	NumNodes       int

	MasterAddr string // host of the store; 127.0.0.1 where there is one machine
	MasterPort int    // 0 only where there is one rank and nobody named a port

	// UseAgentStore says that the launcher serves the store at MasterAddr:MasterPort, so that every rank, 0
	// included, is a client of it.
	UseAgentStore bool
	RestartCount  int    // how often the launcher has restarted the ranks; a prefix for keys in a store that outlives them
	RunID         string // the launcher's name for the job, or ""
	ErrorFile     string // where the launcher looks for the reason of a failure, or ""
	Source        string // which rule of FromEnv applied: torchrun, env, mpi, slurm, single
}

// EnvError is an environment variable that is missing, malformed or contradicts another one.
type EnvError struct {
	Variable string
	Value    string // "" if it is not set
	Problem  string
}

func (e *EnvError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("dist: environment variable %s %s", e.Variable, e.Problem)
	}
	return fmt.Sprintf("dist: environment variable %s=%q %s", e.Variable, e.Value, e.Problem)
}

// FromEnv reads the place of this process in its job from the environment. The first rule that applies counts:
//
//  1. RANK and WORLD_SIZE, as torchrun, `gofsdp launch`, accelerate and Kubeflow's PyTorchJob set them;
//  2. OMPI_COMM_WORLD_*, MV2_COMM_WORLD_* or PMI_* of an MPI launcher;
//  3. SLURM_PROCID in a job step of srun. A batch script or an interactive shell of Slurm has the same
//     variables but no peers, and is not taken for a rank;
//  4. PET_* alone describes a machine and not a rank: an error that says how to start;
//  5. otherwise this process is the only rank.
//
// Contradictions are an *EnvError that names the variable.
func FromEnv() (Env, error) {
	return fromEnv(os.LookupEnv)
}

// WriteErrorFile leaves err, with the stack of the calling goroutine, where the launcher looks for the reason of
// a failure. Without an ErrorFile it does nothing.
func (e Env) WriteErrorFile(err error) error {
	if e.ErrorFile == "" || err == nil {
		return nil
	}
	return errorfile.Write(e.ErrorFile, err.Error(), string(debug.Stack()), time.Now())
}

// String is a short form for logs.
func (e Env) String() string {
	return fmt.Sprintf("rank %d/%d (local %d/%d, node %d/%d, master %s:%d, from %s)", e.Rank, e.WorldSize,
		e.LocalRank, e.LocalWorldSize, e.NodeRank, e.NumNodes, e.MasterAddr, e.MasterPort, e.Source)
}

func fromEnv(lookup func(string) (string, bool)) (Env, error) {
	v := &vars{lookup: lookup}
	var e Env
	switch {
	case v.has("RANK") || v.has("WORLD_SIZE"):
		e = fromTorchrun(v)
	case v.hasMPI():
		e = fromMPI(v)
	case v.inSlurmStep():
		e = fromSlurm(v)
	case v.hasPET():
		return Env{}, errors.New("dist: PET_* describes this machine, but nothing says which rank this process is: " +
			"start it with `torchrun --no-python <program>` or `gofsdp launch <program>`")
	default:
		e = Env{WorldSize: 1, LocalWorldSize: 1, NumNodes: 1, Source: "single",
			MasterAddr: v.text("MASTER_ADDR", "127.0.0.1"), MasterPort: v.port(0)}
	}
	e.RestartCount = v.number("TORCHELASTIC_RESTART_COUNT", 0)
	e.RunID = v.text("TORCHELASTIC_RUN_ID", e.RunID)
	e.ErrorFile = v.text("TORCHELASTIC_ERROR_FILE", "")
	if v.err != nil {
		return Env{}, v.err
	}
	if err := e.validate(v); err != nil {
		return Env{}, err
	}
	return e, nil
}

// fromTorchrun reads the variables that torch.distributed's env:// method defines, and torchrun's additions.
func fromTorchrun(v *vars) Env {
	e := Env{Source: "env", Rank: v.required("RANK", "WORLD_SIZE is set"), WorldSize: v.required("WORLD_SIZE", "RANK is set")}
	if v.has("TORCHELASTIC_RUN_ID") {
		e.Source = "torchrun"
	}
	// Only RANK and WORLD_SIZE: one rank per machine, as PyTorchJob starts them.
	e.LocalWorldSize, e.NumNodes, e.NodeRank = 1, max(e.WorldSize, 1), e.Rank
	if v.has("LOCAL_RANK") || v.has("LOCAL_WORLD_SIZE") {
		e.LocalRank = v.number("LOCAL_RANK", 0)
		e.LocalWorldSize = e.WorldSize
		if v.has("LOCAL_WORLD_SIZE") {
			e.LocalWorldSize = v.required("LOCAL_WORLD_SIZE", "")
		} else if e.LocalRank != e.Rank {
			v.fail("LOCAL_WORLD_SIZE", fmt.Sprintf("is not set, and LOCAL_RANK=%d differs from RANK=%d: "+
				"it must say how many ranks this machine has", e.LocalRank, e.Rank))
		}
		e.NumNodes = ceilDiv(e.WorldSize, e.LocalWorldSize)
		e.NodeRank = min(e.Rank/max(e.LocalWorldSize, 1), max(e.NumNodes-1, 0))
	}
	e.NumNodes = v.number("GROUP_WORLD_SIZE", e.NumNodes)
	e.NodeRank = v.number("GROUP_RANK", v.number("NODE_RANK", e.NodeRank))
	e.UseAgentStore = v.boolean("TORCHELASTIC_USE_AGENT_STORE")
	v.master(&e, "")
	return e
}

// mpiNames are the variables of one MPI launcher. A local name that is "" is not told by it.
type mpiNames struct{ rank, size, localRank, localSize string }

var mpiFamilies = []mpiNames{
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
	{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
}

func (v *vars) hasMPI() bool {
	for _, f := range mpiFamilies {
		if v.has(f.rank) || v.has(f.size) {
			// srun's own PMI plugin sets PMI_*, but not the local rank: Slurm's variables tell more.
			return f.rank != "PMI_RANK" || v.has(f.localRank) || !v.inSlurmStep()
		}
	}
	return false
}

func fromMPI(v *vars) Env {
	for _, f := range mpiFamilies {
		if !v.has(f.rank) && !v.has(f.size) {
			continue
		}
		e := Env{Source: "mpi", Rank: v.required(f.rank, f.size+" is set"), WorldSize: v.required(f.size, f.rank+" is set")}
		if v.has(f.localRank) && v.has(f.localSize) {
			e.LocalRank, e.LocalWorldSize = v.number(f.localRank, 0), v.number(f.localSize, 0)
		} else if e.WorldSize > 1 {
			v.fail(f.localRank, "is not set: it must say which of this machine's ranks this is (and "+f.localSize+" how many there are)")
		} else {
			e.LocalWorldSize = 1
		}
		e.NumNodes = ceilDiv(e.WorldSize, e.LocalWorldSize)
		e.NodeRank = min(e.Rank/max(e.LocalWorldSize, 1), max(e.NumNodes-1, 0))
		addr := ""
		if e.NumNodes == 1 {
			addr = "127.0.0.1"
		}
		if !v.has("MASTER_PORT") {
			e.MasterPort = DefaultMasterPort
		}
		v.master(&e, addr)
		return e
	}
	return Env{}
}

func (v *vars) hasPET() bool {
	for _, name := range []string{"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR"} {
		if v.has(name) {
			return true
		}
	}
	return false
}

// validate looks for contradictions. The variable that it names is the one of the rule that applied.
func (e Env) validate(v *vars) error {
	name := func(torchrun, slurm string, mpi func(mpiNames) string) string {
		switch e.Source {
		case "slurm":
			return slurm
		case "mpi":
			for _, f := range mpiFamilies {
				if v.has(f.rank) {
					return mpi(f)
				}
			}
		}
		return torchrun
	}
	rank := name("RANK", "SLURM_PROCID", func(f mpiNames) string { return f.rank })
	size := name("WORLD_SIZE", "SLURM_NTASKS", func(f mpiNames) string { return f.size })
	localRank := name("LOCAL_RANK", "SLURM_LOCALID", func(f mpiNames) string { return f.localRank })
	localSize := name("LOCAL_WORLD_SIZE", "SLURM_TASKS_PER_NODE", func(f mpiNames) string { return f.localSize })
	nodeRank := name("GROUP_RANK", "SLURM_NODEID", func(f mpiNames) string { return f.rank })
	for _, check := range []struct {
		wrong             bool
		variable, problem string
	}{
		{e.WorldSize < 1, size, "must be at least 1"},
		{e.Rank < 0 || e.Rank >= e.WorldSize, rank, fmt.Sprintf("must be in 0 … %s-1 = %d", size, e.WorldSize-1)},
		{e.LocalWorldSize < 1, localSize, "must be at least 1"},
		{e.LocalWorldSize > e.WorldSize, localSize, fmt.Sprintf("is more than %s=%d", size, e.WorldSize)},
		{e.LocalRank < 0 || e.LocalRank >= e.LocalWorldSize, localRank,
			fmt.Sprintf("must be in 0 … %s-1 = %d", localSize, e.LocalWorldSize-1)},
		{e.LocalRank > e.Rank, localRank, fmt.Sprintf("is more than %s=%d", rank, e.Rank)},
		{e.NodeRank < 0 || e.NodeRank >= e.NumNodes, nodeRank, fmt.Sprintf("must be in 0 … %d (there are %d machines)", e.NumNodes-1, e.NumNodes)},
		{e.NumNodes > e.WorldSize, "GROUP_WORLD_SIZE", fmt.Sprintf("is more than %s=%d", size, e.WorldSize)},
		{e.RestartCount < 0, "TORCHELASTIC_RESTART_COUNT", "must not be negative"},
	} {
		if check.wrong {
			return &EnvError{check.variable, v.text(check.variable, ""), check.problem}
		}
	}
	return nil
}

// vars reads variables and keeps the first fault. A variable that is set to nothing counts as not set.
type vars struct {
	lookup func(string) (string, bool)
	err    error
}

func (v *vars) text(name, otherwise string) string {
	if s, _ := v.lookup(name); strings.TrimSpace(s) != "" {
		return strings.TrimSpace(s)
	}
	return otherwise
}

func (v *vars) has(name string) bool { return v.text(name, "") != "" }

func (v *vars) fail(name, problem string) {
	if v.err == nil {
		v.err = &EnvError{name, v.text(name, ""), problem}
	}
}

func (v *vars) number(name string, otherwise int) int {
	s := v.text(name, "")
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		v.fail(name, "is not a number")
		return otherwise
	}
	return int(n)
}

func (v *vars) required(name, why string) int {
	if !v.has(name) {
		v.fail(name, "is not set, but "+why)
	}
	return v.number(name, 0)
}

func (v *vars) boolean(name string) bool {
	switch s := strings.ToLower(v.text(name, "false")); s {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	v.fail(name, "is neither True nor False")
	return false
}

func (v *vars) port(otherwise int) int {
	port := v.number("MASTER_PORT", otherwise)
	if v.has("MASTER_PORT") && (port < 1 || port > 65535) {
		v.fail("MASTER_PORT", "is not a port (1 … 65535)")
	}
	return port
}

// master fills the store's address: from MASTER_ADDR and MASTER_PORT, else the given address and e.MasterPort.
// With several ranks both must be known.
func (v *vars) master(e *Env, addr string) {
	e.MasterAddr, e.MasterPort = v.text("MASTER_ADDR", addr), v.port(e.MasterPort)
	if e.WorldSize > 1 && e.MasterAddr == "" {
		v.fail("MASTER_ADDR", fmt.Sprintf("is not set: with %d ranks it must name the machine of rank 0", e.WorldSize))
	}
	if e.WorldSize > 1 && e.MasterPort == 0 {
		v.fail("MASTER_PORT", fmt.Sprintf("is not set: with %d ranks it must name a port on MASTER_ADDR", e.WorldSize))
	}
	if e.MasterAddr == "" {
		e.MasterAddr = "127.0.0.1"
	}
}

func ceilDiv(a, b int) int {
	if b < 1 {
		return 1
	}
	return (a + b - 1) / b
}
