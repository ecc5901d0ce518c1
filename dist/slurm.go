package dist

import (
	"fmt"
	"strconv"
	"strings"
)

// Job steps with numbers from here on are Slurm's own: interactive shell, batch script, extern.
const firstSpecialStep = 0xfffffff0

// inSlurmStep reports whether srun started this process as a task of a step. The batch script and an
// interactive shell carry most of Slurm's variables as well, SLURM_PROCID included, but have no peers: they
// have no step, or a special one, or (srun --pty) a terminal.
func (v *vars) inSlurmStep() bool {
	if !v.has("SLURM_PROCID") || v.has("SLURM_PTY_PORT") {
		return false
	}
	step, err := strconv.ParseUint(v.text("SLURM_STEP_ID", v.text("SLURM_STEPID", "")), 10, 64)
	return err == nil && step < firstSpecialStep
}

// fromSlurm reads the variables that srun sets for each task.
func fromSlurm(v *vars) Env {
	e := Env{
		Source:    "slurm",
		Rank:      v.required("SLURM_PROCID", ""),
		LocalRank: v.required("SLURM_LOCALID", "SLURM_PROCID is set"),
		NodeRank:  v.number("SLURM_NODEID", 0),
		WorldSize: v.number("SLURM_STEP_NUM_TASKS", v.number("SLURM_NTASKS", v.number("SLURM_NPROCS", 0))),
		RunID:     v.text("SLURM_JOB_ID", ""),
	}
	if e.WorldSize == 0 {
		v.fail("SLURM_NTASKS", "is not set, but SLURM_PROCID is set")
	}
	counts := v.text("SLURM_STEP_TASKS_PER_NODE", v.text("SLURM_TASKS_PER_NODE", ""))
	tasks, err := expandTasks(counts)
	switch {
	case err != nil:
		v.fail("SLURM_TASKS_PER_NODE", err.Error())
	case len(tasks) == 0: // one machine, then
		e.LocalWorldSize, e.NumNodes = e.WorldSize, 1
	case e.NodeRank < 0 || e.NodeRank >= len(tasks):
		v.fail("SLURM_NODEID", fmt.Sprintf("is not one of the %d machines of SLURM_TASKS_PER_NODE=%s", len(tasks), counts))
	default:
		e.LocalWorldSize, e.NumNodes = tasks[e.NodeRank], len(tasks)
	}
	host, err := firstHost(v.text("SLURM_STEP_NODELIST", v.text("SLURM_JOB_NODELIST", v.text("SLURM_NODELIST", ""))))
	if err != nil {
		v.fail("SLURM_JOB_NODELIST", err.Error())
	}
	if !v.has("MASTER_PORT") {
		// Jobs that share a machine get different ports, and the ranks of a job the same one.
		e.MasterPort = DefaultMasterPort + v.number("SLURM_JOB_ID", 0)%1000
	}
	v.master(&e, host)
	return e
}

// maxTasks bounds what expandTasks makes of a malformed list.
const maxTasks = 1 << 20

// expandTasks reads Slurm's list of tasks per machine: "4(x2),3" is 4, 4, 3.
func expandTasks(list string) ([]int, error) {
	if list == "" {
		return nil, nil
	}
	var out []int
	for item := range strings.SplitSeq(list, ",") {
		count, repeat, repeated := strings.Cut(strings.TrimSpace(item), "(x")
		n, err := strconv.Atoi(count)
		times := 1
		if repeated && err == nil {
			times, err = strconv.Atoi(strings.TrimSuffix(repeat, ")"))
		}
		if err != nil || n < 0 || times < 1 || len(out)+times > maxTasks || repeated && !strings.HasSuffix(repeat, ")") {
			return nil, fmt.Errorf("has %q, want a list such as 4(x2),3", item)
		}
		for range times {
			out = append(out, n)
		}
	}
	return out, nil
}

// firstHost returns the first name of a Slurm host list: "gnode[10,20]" and "gnode[10-20],x1" both begin with
// gnode10. A name may have several brackets. It is "" for an empty list.
func firstHost(list string) (string, error) {
	var name strings.Builder
	for i := 0; i < len(list); i++ {
		switch c := list[i]; c {
		case ',':
			return name.String(), nil
		case '[':
			end := strings.IndexByte(list[i:], ']')
			if end < 0 {
				return "", fmt.Errorf("has a [ without a ]")
			}
			first := list[i+1 : i+end]
			if cut := strings.IndexAny(first, ",-"); cut >= 0 {
				first = first[:cut]
			}
			if first == "" || strings.ContainsRune(first, '[') {
				return "", fmt.Errorf("has a malformed range [%s]", list[i+1:i+end])
			}
			name.WriteString(first)
			i += end
		case ']':
			return "", fmt.Errorf("has a ] without a [")
		default:
			name.WriteByte(c)
		}
	}
	return name.String(), nil
}
