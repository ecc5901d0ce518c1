package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

const report = `{"step":0,"loss":2.075,"loss_rank":2.167,"grad_norm":0.28,"t":9.5,"cpu_s":9}
{"step":1,"loss":2.043,"loss_rank":2.001,"grad_norm":0.31,"t":3,"cpu_s":2.5}
{"step":2,"loss":2.266,"loss_rank":2.147,"grad_norm":0.31,"t":5,"cpu_s":4.5}
{"peak_rss_mib":[900,1000.4],"start_to_first_step_s":12.34,"rank":0}
`

func TestParse(t *testing.T) {
	r, err := parse([]byte(report), job{Steps: 3, Ranks: 2})
	require.NoError(t, err)
	require.Equal(t, step{Step: 1, Loss: 2.043, LossRank: 2.001, GradNorm: 0.31, Wall: 3, CPU: 2.5}, r.Steps[1])
	require.Equal(t, []float64{900, 1000.4}, r.PeakRSS)
	require.Equal(t, 12.34, r.StartToFirstStep)
}

func TestParseRefusesIncompleteReports(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		steps int
	}{
		"too few steps": {report, 4},
		"no last line":  {`{"step":0,"loss":2,"t":1,"cpu_s":1}`, 1},
		"not JSON":      {"Traceback (most recent call last):\n", 0},
		"no times":      {`{"step":0,"loss":2}` + "\n" + `{"peak_rss_mib":[1,2],"start_to_first_step_s":1}`, 1},
	} {
		_, err := parse([]byte(c.text), job{Steps: c.steps, Ranks: 2})
		require.Error(t, err, name)
	}
}

func TestMarkdown(t *testing.T) {
	mine, err := parse([]byte(report), job{Steps: 3, Ranks: 2})
	require.NoError(t, err)
	theirs := mine
	mine.Program, theirs.Program = "gofsdp", "PyTorch"
	theirs.Steps = []step{mine.Steps[0], {Wall: 8, CPU: 7}, {Wall: 8, CPU: 7}}
	s := setting{Quant: "nf4", Recompute: true, Runs: []run{theirs, mine}}
	require.Equal(t, `| NF4, activations recomputed | gofsdp | PyTorch | ratio |
|---|---:|---:|---:|
| time per step (s) | 4.00 | 8.00 | 0.50 |
| CPU per step and rank (s) | 3.50 | 7.00 | 0.50 |
| peak memory per rank (MiB) | 1000 | 1000 | 1.00 |
| launch to end of first step (s) | 12.3 | 12.3 | 1.00 |
`, s.table())
}

func TestCompareLosses(t *testing.T) {
	compare := func(loss float64) error {
		return results{Settings: []setting{{Quant: "nf4", Runs: []run{
			{Program: "gofsdp", Steps: []step{{Loss: 2}}}, {Program: "PyTorch", Steps: []step{{Loss: loss}}},
		}}}}.compareLosses()
	}
	require.NoError(t, compare(2.00001))
	require.ErrorContains(t, compare(2.01), "step 0")
	require.Error(t, compare(math.NaN()))
}
