package dist

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/internal/errorfile"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parse runs fromEnv on variables written as in a shell.
func parse(env string) (Env, error) {
	m := map[string]string{}
	for field := range strings.FieldsSeq(env) {
		k, v, _ := strings.Cut(field, "=")
		m[k] = v
	}
	return fromEnv(func(name string) (string, bool) { v, ok := m[name]; return v, ok })
}

// Recorded from the launchers, shortened to what could matter.
const (
	torchrun = "LOCAL_RANK=1 RANK=5 GROUP_RANK=1 ROLE_RANK=5 ROLE_NAME=default LOCAL_WORLD_SIZE=4 WORLD_SIZE=8 " +
		"GROUP_WORLD_SIZE=2 ROLE_WORLD_SIZE=8 MASTER_ADDR=node0 MASTER_PORT=29400 TORCHELASTIC_RESTART_COUNT=2 " +
		"TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_USE_AGENT_STORE=True " +
		"TORCHELASTIC_ERROR_FILE=/e/1/error.json "
	ompi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 " +
		"OMPI_COMM_WORLD_NODE_RANK=1 "
	slurm = "SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_ID=0 " +
		"SLURM_STEP_TASKS_PER_NODE=4,3 SLURM_STEP_NODELIST=gnode[10,20] SLURM_JOB_NODELIST=gnode[10,20] SLURM_JOB_ID=123456 "
	slurmBatch = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=8 SLURM_TASKS_PER_NODE=4(x2) " +
		"SLURM_JOB_NODELIST=gnode[10,20] SLURM_JOB_ID=123456 "
	pet = "PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29500 "
)

func TestFromEnv(t *testing.T) {
	for name, test := range map[string]struct {
		env  string
		want Env
	}{
		"torchrun": {torchrun, Env{Rank: 5, WorldSize: 8, LocalRank: 1, LocalWorldSize: 4, NodeRank: 1, NumNodes: 2,
			MasterAddr: "node0", MasterPort: 29400, UseAgentStore: true, RestartCount: 2, RunID: "job7",
			ErrorFile: "/e/1/error.json", Source: "torchrun"}},
		"torchrun under srun and mpirun": {torchrun + slurm + ompi + pet, Env{Rank: 5, WorldSize: 8, LocalRank: 1,
			LocalWorldSize: 4, NodeRank: 1, NumNodes: 2, MasterAddr: "node0", MasterPort: 29400, UseAgentStore: true,
			RestartCount: 2, RunID: "job7", ErrorFile: "/e/1/error.json", Source: "torchrun"}},
		"torchrun --virtual-local-rank": {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
			Env{Rank: 1, WorldSize: 2, LocalWorldSize: 2, NumNodes: 1, MasterAddr: "a", MasterPort: 1, Source: "env"}},
		"PyTorchJob: a rank per pod": {"RANK=2 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456",
			Env{Rank: 2, WorldSize: 3, LocalWorldSize: 1, NodeRank: 2, NumNodes: 3, MasterAddr: "job-master-0",
				MasterPort: 23456, Source: "env"}},
		"local ranks without their number": {"RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
			Env{Rank: 1, LocalRank: 1, WorldSize: 2, LocalWorldSize: 2, NumNodes: 1, MasterAddr: "a", MasterPort: 1, Source: "env"}},
		"one rank needs no master": {"RANK=0 WORLD_SIZE=1",
			Env{WorldSize: 1, LocalWorldSize: 1, NumNodes: 1, MasterAddr: "127.0.0.1", Source: "env"}},
		"Open MPI": {ompi + "MASTER_ADDR=head", Env{Rank: 3, WorldSize: 4, LocalRank: 1, LocalWorldSize: 2, NodeRank: 1,
			NumNodes: 2, MasterAddr: "head", MasterPort: 29500, Source: "mpi"}},
		"MPI on one machine": {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_PORT=7", Env{Rank: 1,
			WorldSize: 2, LocalRank: 1, LocalWorldSize: 2, NumNodes: 1, MasterAddr: "127.0.0.1", MasterPort: 7, Source: "mpi"}},
		"MVAPICH": {"MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=0 MV2_COMM_WORLD_LOCAL_SIZE=2",
			Env{WorldSize: 2, LocalWorldSize: 2, NumNodes: 1, MasterAddr: "127.0.0.1", MasterPort: 29500, Source: "mpi"}},
		"srun": {slurm, Env{Rank: 5, WorldSize: 7, LocalRank: 1, LocalWorldSize: 3, NodeRank: 1, NumNodes: 2,
			MasterAddr: "gnode10", MasterPort: 29956, RunID: "123456", Source: "slurm"}},
		"srun --mpi=pmi2": {slurm + "PMI_RANK=5 PMI_SIZE=7", Env{Rank: 5, WorldSize: 7, LocalRank: 1, LocalWorldSize: 3,
			NodeRank: 1, NumNodes: 2, MasterAddr: "gnode10", MasterPort: 29956, RunID: "123456", Source: "slurm"}},
		"srun with a master of its own": {slurm + "MASTER_ADDR=ib0 MASTER_PORT=5", Env{Rank: 5, WorldSize: 7, LocalRank: 1,
			LocalWorldSize: 3, NodeRank: 1, NumNodes: 2, MasterAddr: "ib0", MasterPort: 5, RunID: "123456", Source: "slurm"}},
		"sbatch's script is no rank":      {slurmBatch, single()},
		"nor is the batch step":           {slurmBatch + "SLURM_STEP_ID=4294967291", single()},
		"nor is salloc's shell":           {slurmBatch + "SLURM_STEP_ID=4294967290", single()},
		"nor is srun --pty":               {slurmBatch + "SLURM_STEP_ID=0 SLURM_PTY_PORT=4711", single()},
		"nothing":                         {"HOME=/h", single()},
		"variables that are set to empty": {"RANK= WORLD_SIZE= PET_NNODES=", single()},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(test.env)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func single() Env {
	return Env{WorldSize: 1, LocalWorldSize: 1, NumNodes: 1, MasterAddr: "127.0.0.1", Source: "single"}
}

func TestFromEnvContradictions(t *testing.T) {
	const master = " MASTER_ADDR=a MASTER_PORT=1"
	for _, test := range []struct{ env, variable string }{
		{"RANK=0", "WORLD_SIZE"},
		{"WORLD_SIZE=2" + master, "RANK"},
		{"RANK=2 WORLD_SIZE=2" + master, "RANK"},
		{"RANK=-1 WORLD_SIZE=2" + master, "RANK"},
		{"RANK=x WORLD_SIZE=2" + master, "RANK"},
		{"RANK=0 WORLD_SIZE=0", "WORLD_SIZE"},
		{"RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT"},
		{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3" + master, "LOCAL_WORLD_SIZE"},
		{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=0" + master, "LOCAL_WORLD_SIZE"},
		{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1" + master, "LOCAL_WORLD_SIZE"},
		{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2" + master, "LOCAL_RANK"},
		{"RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2" + master, "LOCAL_RANK"},
		{"RANK=0 WORLD_SIZE=2 GROUP_RANK=2 GROUP_WORLD_SIZE=2" + master, "GROUP_RANK"},
		{"RANK=0 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=maybe" + master, "TORCHELASTIC_USE_AGENT_STORE"},
		{"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=-1", "TORCHELASTIC_RESTART_COUNT"},
		{ompi, "MASTER_ADDR"},
		{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE"},
		{"OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK"},
		{"PMI_RANK=1 PMI_SIZE=2", "MPI_LOCALRANKID"},
		{"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0", "SLURM_NTASKS"},
		{"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2", "MASTER_ADDR"},
		{"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2(y1) SLURM_JOB_NODELIST=a", "SLURM_TASKS_PER_NODE"},
		{"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NODEID=2 SLURM_TASKS_PER_NODE=1(x2) SLURM_JOB_NODELIST=a", "SLURM_NODEID"},
		{"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a[1", "SLURM_JOB_NODELIST"},
	} {
		t.Run(test.env, func(t *testing.T) {
			_, err := parse(test.env)
			var fault *EnvError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, test.variable, fault.Variable, err)
			require.ErrorContains(t, err, test.variable)
		})
	}
}

func TestPETAloneSaysHowToStart(t *testing.T) {
	_, err := parse(pet)
	require.ErrorContains(t, err, "torchrun --no-python")
	require.ErrorContains(t, err, "gofsdp launch")
}

func TestFromEnvReadsTheEnvironment(t *testing.T) {
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMI_RANK"} {
		t.Setenv(name, "")
	}
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	path := filepath.Join(t.TempDir(), "error.json")
	t.Setenv("TORCHELASTIC_ERROR_FILE", path)
	e, err := FromEnv()
	require.NoError(t, err)
	require.Equal(t, 1, e.WorldSize)
	require.Contains(t, e.String(), "rank 0/1")

	require.NoError(t, e.WriteErrorFile(errors.New("boom")))
	text, err := errorfile.Read(path)
	require.NoError(t, err)
	require.Equal(t, "boom", text)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(data), "TestFromEnvReadsTheEnvironment", "the stack of the caller")
	require.NoError(t, Env{}.WriteErrorFile(errors.New("nowhere to write it")))
}

func TestSlurmLists(t *testing.T) {
	for list, want := range map[string]string{
		"": "", "a": "a", "a,b": "a", "gnode[10,20]": "gnode10", "gnode[010-012,020]": "gnode010",
		"rack[1-2]n[3-4],x": "rack1n3", "n[7].cluster,b": "n7.cluster", "a-b[1-2]": "a-b1",
	} {
		got, err := firstHost(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
	for _, list := range []string{"a[", "a]", "a[]", "a[,1]", "a[-3]", "a[[1]"} {
		_, err := firstHost(list)
		require.Error(t, err, list)
	}
	tasks, err := expandTasks("4(x2),3")
	require.NoError(t, err)
	require.Equal(t, []int{4, 4, 3}, tasks)
	for _, list := range []string{"x", "4(x", "4(x2", "4(x0)", "-1", "1,", "1(x99999999)"} {
		_, err := expandTasks(list)
		require.Error(t, err, list)
	}
}

// Whatever is accepted is consistent, and a place that torchrun hands out is read back as it is.
func TestTorchrunPlacesAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, local := rapid.IntRange(1, 20).Draw(t, "nodes"), rapid.IntRange(1, 16).Draw(t, "local")
		node, localRank := rapid.IntRange(0, nodes-1).Draw(t, "node"), rapid.IntRange(0, local-1).Draw(t, "localRank")
		m := map[string]int{"RANK": node*local + localRank, "WORLD_SIZE": nodes * local, "LOCAL_RANK": localRank,
			"LOCAL_WORLD_SIZE": local, "MASTER_PORT": 29500}
		got, err := fromEnv(func(name string) (string, bool) {
			if name == "MASTER_ADDR" {
				return "host", true
			}
			n, ok := m[name]
			if !ok {
				return "", false
			}
			return strconv.Itoa(n), true
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.NodeRank != node || got.NumNodes != nodes || got.LocalRank != localRank || got.Rank != node*local+localRank {
			t.Fatalf("got %v", got)
		}
	})
}

func FuzzFirstHost(f *testing.F) {
	for _, s := range []string{"a", "gnode[10,20]", "r[1-2]n[3]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		host, err := firstHost(list)
		if err == nil && strings.ContainsAny(host, "[]") {
			t.Fatalf("%q gave %q", list, host)
		}
		_, _ = expandTasks(list)
	})
}
