package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// sample is a command line with one flag of each kind.
type sample struct {
	Train struct {
		MaxSteps int      `name:"max_steps" default:"-1"`
		Rate     float64  `name:"learning_rate"`
		Length   int      `name:"max_length" aliases:"max_seq_length"`
		Packing  bool     `name:"packing" negatable:""`
		Save     bool     `name:"save" negatable:"" default:"true"`
		Targets  []string `name:"lora_target_modules"`
		Note     string   `name:"note"`
		CUDA     string   `name:"cuda" default:"auto" alone:"on"`
	} `cmd:"" settings:""`
	Start struct {
		Processes int      `name:"num_processes"`
		Command   []string `arg:"" passthrough:"partial"`
	} `cmd:""`
}

func parseSample(t *testing.T, args ...string) (sample, error) {
	var s sample
	parser, err := kong.New(&s, kong.Exit(func(int) { t.Fatal("exit") }))
	require.NoError(t, err)
	_, err = parse(parser, args)
	return s, err
}

func TestFlagSpellings(t *testing.T) {
	s, err := parseSample(t, "train", "--max-steps", "-1", "--learning_rate=2e-4", "--packing", "True", "--save", "no",
		"--max_seq_length", "256", "--lora_target_modules", "q_proj", "v_proj,o_proj", "--note", "a b")
	require.NoError(t, err)
	require.Equal(t, -1, s.Train.MaxSteps)
	require.Equal(t, 2e-4, s.Train.Rate)
	require.Equal(t, 256, s.Train.Length)
	require.True(t, s.Train.Packing)
	require.False(t, s.Train.Save)
	require.Equal(t, []string{"q_proj", "v_proj", "o_proj"}, s.Train.Targets)
	require.Equal(t, "a b", s.Train.Note)

	for _, off := range [][]string{{"--no_save"}, {"--no-save"}, {"--save=false"}, {"--save", "0"}, {"--no_save", "true"}} {
		s, err := parseSample(t, append(append([]string{"train"}, off...), "--packing")...)
		require.NoError(t, err)
		require.False(t, s.Train.Save, off)
		require.True(t, s.Train.Packing)
	}

	s, err = parseSample(t, "start", "--num-processes", "2", "train", "--learning-rate", "1", "--packing", "true")
	require.NoError(t, err)
	require.Equal(t, 2, s.Start.Processes)
	require.Equal(t, []string{"train", "--learning-rate", "1", "--packing", "true"}, s.Start.Command, "not ours to rewrite")
}

// A flag that says what it means alone may have a value or none.
func TestFlagAlone(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "auto"}, {[]string{"--cuda"}, "on"}, {[]string{"--cuda", "off"}, "off"}, {[]string{"--cuda=auto"}, "auto"},
		{[]string{"--cuda", "--note", "x"}, "on"},
	} {
		s, err := parseSample(t, append([]string{"train"}, test.args...)...)
		require.NoError(t, err)
		require.Equal(t, test.want, s.Train.CUDA, test.args)
	}
}

func TestFlagFaults(t *testing.T) {
	for want, args := range map[string][]string{
		"unknown flag --lerning_rate; did you mean learning_rate?": {"--lerning_rate", "1"},
		"unknown flag --zzz":                {"--zzz"},
		"--packing: \"perhaps\" is neither": {"--packing=perhaps"},
		"--note: its value is missing":      {"--note", "--packing"},
		"--max_steps":                       {"--max_steps", "many"},
		"unexpected argument":               {"--packing", "file.json"},
	} {
		_, err := parseSample(t, append([]string{"train"}, args...)...)
		require.ErrorContains(t, err, want)
	}
}

func TestSettingsFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	for _, path := range []string{
		write("a.json", "{\n\t\"learning_rate\": 2e-4, \"max-steps\": 7, \"packing\": true, \"save\": \"no\",\n\t\"note\": null, \"lora_target_modules\": [\"q_proj\", \"v_proj\"]\n}"),
		write("a.yaml", "# a run\nlearning_rate: 2e-4\nmax-steps: 7\npacking: yes\nsave: false\nnote: ~\nlora_target_modules:\n  - q_proj\n  - v_proj\n"),
	} {
		s, err := parseSample(t, "train", path)
		require.NoError(t, err)
		require.Equal(t, 2e-4, s.Train.Rate)
		require.Equal(t, 7, s.Train.MaxSteps)
		require.True(t, s.Train.Packing)
		require.False(t, s.Train.Save)
		require.Empty(t, s.Train.Note)
		require.Equal(t, []string{"q_proj", "v_proj"}, s.Train.Targets)

		s, err = parseSample(t, "train", path, "--max_steps", "9", "--lora_target_modules", "k_proj")
		require.NoError(t, err)
		require.Equal(t, 9, s.Train.MaxSteps, "the command line wins")
		require.Equal(t, []string{"k_proj"}, s.Train.Targets, "and does not add to a list")
		require.Equal(t, 2e-4, s.Train.Rate)
	}
	for text, want := range map[string]string{
		"{\"save\": true,\n\"max_step\": 3, \"no_save\": 1}": ".json:2: unknown key max_step; did you mean max_steps?",
		"{\"no_save\": true}":                                "unknown key no_save",
		"{\"packing\": 2}":                                   `packing: "2" is neither true nor false`,
		"{\"note\": 1,\n\"note\": 2}":                        ".json:2: note is set already in line 1",
		"{\"note\": {\"a\": 1}}":                             "note: want a value or a list of values",
		"{\"note\": [[1]]}":                                  "note: want a value or a list of values",
		"[1]":                                                "want an object",
		"{\"note\": 1":                                       "line 1",
		"{} {}":                                              "more than one value",
		"":                                                   "EOF",
	} {
		_, err := parseSample(t, "train", write("bad.json", text))
		require.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		"save: true\nmax_step: 3":     ".yaml:2: unknown key max_step; did you mean max_steps?",
		"note:\n  a: 1":               "line 1: note: want a value or a list of values",
		"- a":                         "want a mapping",
		"a: [":                        "malformed YAML",
		"save: true\n---\nsave: true": "more than one YAML document",
	} {
		_, err := parseSample(t, "train", write("bad.yaml", text))
		require.ErrorContains(t, err, want, text)
	}
	_, err := parseSample(t, "train", filepath.Join(dir, "absent.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte(`{"a": [1, "b", null], "c": false}`))
	f.Add([]byte("a: 1\nb: [x, 2]\n"))
	f.Add([]byte("? [a]\n: {b: !!x c}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func([]byte) ([]setting, error){parseJSON, parseYAML} {
			list, err := parse(data)
			if err != nil && list != nil {
				t.Fatal("a list beside an error")
			}
		}
	})
}
