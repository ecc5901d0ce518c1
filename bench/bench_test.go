package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

const report = `[rank 0] {"step":0,"loss":2.075,"loss_rank":2.167,"grad_norm":0.28,"t":9.5,"cpu_s":9}
{"step":1,"loss":2.043,"loss_rank":2.001,"grad_norm":0.31,"t":3,"cpu_s":2.5}
a warning of some library
{"step":2,"loss":2.266,"loss_rank":2.147,"grad_norm":0.31,"t":5,"cpu_s":4.5}
{"peak_rss_mib":1000.4,"start_to_first_step_s":12.34,"rank":1}
{"peak_rss_mib":900,"start_to_first_step_s":12.31,"rank":0,"world":2}
`

func TestParse(t *testing.T) {
	r, err := parse([]byte(report), job{Steps: 3, Ranks: 2})
	require.NoError(t, err)
	require.Equal(t, []step{
		{Step: 0, Loss: 2.075, GradNorm: 0.28, Wall: 9.5, CPU: 9},
		{Step: 1, Loss: 2.043, GradNorm: 0.31, Wall: 3, CPU: 2.5},
		{Step: 2, Loss: 2.266, GradNorm: 0.31, Wall: 5, CPU: 4.5},
	}, r.Steps)
	require.Equal(t, []rankEnd{{Rank: 0, PeakRSS: 900, StartToFirstStep: 12.31}, {Rank: 1, PeakRSS: 1000.4, StartToFirstStep: 12.34}}, r.Ranks)
}

func TestParseRefusesIncompleteReports(t *testing.T) {
	const end = `{"peak_rss_mib":1,"start_to_first_step_s":1,"rank":0}` + "\n"
	for name, c := range map[string]struct {
		text  string
		steps int
		want  string
	}{
		"too few steps": {report, 4, "3 steps, want 4"},
		"too few ranks": {`{"step":0,"loss":2,"t":1,"cpu_s":1}` + "\n" + end, 1, "the end of rank 1"},
		"not JSON":      {`{"step":`, 0, "unexpected end"},
		"no times":      {`{"step":0,"loss":2}` + "\n" + end, 1, "step 0 is"},
	} {
		_, err := parse([]byte(c.text), job{Steps: c.steps, Ranks: 2})
		require.ErrorContains(t, err, c.want, name)
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
