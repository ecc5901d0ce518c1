package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/convert"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

// tinyModel makes a folder with a model of random weights, a tokenizer and a chat template.
func tinyModel(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, convert.Convert(t.Context(), tinyGGUF, dir, convert.Options{}))
	return dir
}

// output runs the program with text on its standard input, and gives its exit status and what it printed.
func output(t *testing.T, input string, args ...string) (status int, stdout, stderr string) {
	dir := t.TempDir()
	open := func(name, text string) *os.File {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	in, out, errs := os.Stdin, os.Stdout, os.Stderr
	defer func() { os.Stdin, os.Stdout, os.Stderr = in, out, errs }()
	files := []*os.File{open("in", input), open("out", ""), open("err", "")}
	os.Stdin, os.Stdout, os.Stderr = files[0], files[1], files[2]
	status = run(args)
	text := func(f *os.File) string {
		_, err := f.Seek(0, io.SeekStart)
		require.NoError(t, err)
		data, err := io.ReadAll(f)
		require.NoError(t, err)
		return string(data)
	}
	return status, text(files[1]), text(files[2])
}

func TestGenerate(t *testing.T) {
	dir := tinyModel(t)
	base := []string{"generate", "--model-name-or-path", dir, "--max_new_tokens", "6"}
	status, answer, speed := output(t, "", append(base, "--prompt", "Hello")...)
	require.Zero(t, status, speed)
	require.NotEmpty(t, strings.TrimSpace(answer))
	require.Contains(t, speed, "tokens/s")

	_, again, _ := output(t, "Hello\n", base...)
	require.Equal(t, answer, again, "the prompt may come from standard input")
	file := filepath.Join(t.TempDir(), "messages.json")
	for _, text := range []string{`[{"role":"user","content":"Hello"}]`, `{"messages":[{"role":"user","content":"Hello"}]}`} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		_, again, _ = output(t, "", append(base, "--messages", file)...)
		require.Equal(t, answer, again, text)
	}
	sample := append(base, "--prompt", "Hello", "--temperature", "2", "--top_k", "50", "--top_p", "0.9", "--seed")
	_, one, _ := output(t, "", append(sample, "1")...)
	_, two, _ := output(t, "", append(sample, "1")...)
	require.Equal(t, one, two, "the seed decides")
	status, quantised, problem := output(t, "", append(base, "--prompt", "Hello", "--use_4bit_quantization", "true", "--use_nested_quant", "true")...)
	require.Zero(t, status, problem)
	require.NotEmpty(t, strings.TrimSpace(quantised))
}

func TestGenerateFaults(t *testing.T) {
	dir := tinyModel(t)
	config, err := modelio.ReadConfig(dir)
	require.NoError(t, err)
	config.MaxPositionEmbeddings = 128
	require.NoError(t, modelio.WriteConfig(dir, config))
	empty := filepath.Join(t.TempDir(), "messages.json")
	require.NoError(t, os.WriteFile(empty, []byte("[]"), 0o644))
	numbers := filepath.Join(t.TempDir(), "numbers.json")
	require.NoError(t, os.WriteFile(numbers, []byte(`[{"role":"user","content":5}]`), 0o644))
	for want, args := range map[string][]string{
		"content must be a string":     {"--messages", numbers},
		"temperature is -1":            {"--prompt", "Hello", "--temperature", "-1"},
		"temperature is NaN":           {"--prompt", "Hello", "--temperature", "nan"},
		"top_p is 0":                   {"--prompt", "Hello", "--top_p", "0"},
		"top_p is 2":                   {"--prompt", "Hello", "--top_p", "2"},
		"top_k is -3":                  {"--prompt", "Hello", "--top_k", "-3"},
		"the prompt is empty":          {},
		"(max_position_embeddings)":    {"--prompt", strings.Repeat("word ", 400)},
		"max_new_tokens is 0":          {"--prompt", "Hello", "--max_new_tokens", "0"},
		empty + ": no messages":        {"--messages", empty},
		"adapter_config.json":          {"--prompt", "Hello", "--adapter", t.TempDir()},
		"can't be used together":       {"--prompt", "Hello", "--messages", empty},
		"did you mean max_new_tokens?": {"--max_new_token", "3"},
		fmt.Sprintf("%q", "5bit"):      {"--prompt", "Hello", "--bnb_4bit_quant_type", "5bit"},
	} {
		status, _, stderr := output(t, "", append([]string{"generate", "--model_name_or_path", dir}, args...)...)
		require.NotZero(t, status, args)
		require.Contains(t, stderr, want, args)
	}
}

func TestGenerateRefusesWeightsOfAnotherModel(t *testing.T) {
	for want, change := range map[string]func(c *modelio.Config){
		"layers (num_hidden_layers)": func(c *modelio.Config) { c.NumHiddenLayers = 1 << 40 },
		"has shape":                  func(c *modelio.Config) { c.VocabSize = 1 << 40 },
	} {
		dir := tinyModel(t)
		config, err := modelio.ReadConfig(dir)
		require.NoError(t, err)
		change(config)
		require.NoError(t, modelio.WriteConfig(dir, config))
		status, _, stderr := output(t, "", "generate", "--model_name_or_path", dir, "--prompt", "Hello")
		require.NotZero(t, status)
		require.Contains(t, stderr, want)
		require.Contains(t, stderr, "do not fit config.json")
	}
}

func TestParityMergedAdapter(t *testing.T) {
	dir := tinyModel(t)
	files, err := modelio.Open(dir)
	require.NoError(t, err)
	defer files.Close()
	model, err := llama.New(files.Config, llama.Options{DType: torch.Float32})
	require.NoError(t, err)
	adapter, err := peft.Apply(model, peft.Config{R: 4, LoRAAlpha: 64, TargetModules: peft.AllLinear}, peft.Options{})
	require.NoError(t, err)
	random := torch.NewGenerator(1)
	torch.NoGrad(func() {
		for _, l := range adapter.Layers {
			l.B.Tensor().VariableData().NormalInPlace(0, 1, random)
		}
	})
	trained := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, adapter.Save(context.Background(), trained, peft.SaveOptions{}))

	base := []string{"generate", "--model_name_or_path", dir, "--max_new_tokens", "6", "--prompt", "Hello"}
	_, plain, _ := output(t, "", base...)
	status, adapted, stderr := output(t, "", append(base, "--adapter", trained)...)
	require.Zero(t, status, stderr)
	_, merged, _ := output(t, "", append(base, "--adapter", trained, "--merge_adapter")...)
	require.NotEqual(t, plain, adapted)
	require.Equal(t, adapted, merged)
}
