package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/stretchr/testify/require"
)

// conversations writes a dataset folder with a training and an evaluation split.
func conversations(t *testing.T) string {
	dir := t.TempDir()
	for name, rows := range map[string]int{"train.jsonl": 24, "eval.jsonl": 3} {
		var text strings.Builder
		for i := range rows {
			fmt.Fprintf(&text, `{"messages":[{"role":"user","content":"Count to %d."},{"role":"assistant","content":"%s"}]}`+"\n", i+1, strings.Repeat("and one ", i%5+1))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o644))
	}
	return dir
}

func TestSft(t *testing.T) {
	model, out := tinyModel(t), t.TempDir()
	settings := filepath.Join(t.TempDir(), "run.yaml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, "model_name_or_path: %s\ndataset_name: %s\noutput_dir: %s\nuse_peft_lora: true\n"+
		"lora_r: 4\nlora_dropout: 0\nuse_4bit_quantization: true\nuse_nested_quant: true\nlearning_rate: 1e-2\nmax_steps: 100\n"+
		"per_device_train_batch_size: 2\neval_on_start: true\n", model, conversations(t), out), 0o644))
	require.Zero(t, run([]string{"launch", "--num_processes", "2", "sft", settings, "--max-steps", "4", "--save_steps", "2"}))
	require.DirExists(t, filepath.Join(out, "checkpoint-4"))
	require.FileExists(t, filepath.Join(out, "learning_curve.png"))
	adapter := filepath.Join(out, "adapter")
	require.FileExists(t, filepath.Join(adapter, "adapter_config.json"))
	status, answer, problem := output(t, "", "generate", "--model_name_or_path", model, "--adapter", adapter, "--prompt", "Count.", "--max_new_tokens", "4")
	require.Zero(t, status, problem)
	require.NotEmpty(t, strings.TrimSpace(answer))
}

// A signal ends the run after the step that is under way, with a checkpoint and the status of a success.
func TestSftStopsOnRequest(t *testing.T) {
	out := t.TempDir()
	args := []string{"sft", "--model_name_or_path", tinyModel(t), "--dataset_name", conversations(t), "--output_dir", out,
		"--max_steps", "1000000", "--save_strategy", "epoch", "--save_total_limit", "1", "--use_peft_lora"}
	command := exec.Command(os.Args[0], args...)
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	require.NoError(t, err)
	defer file.Close()
	command.Stdout, command.Stderr = file, file
	require.NoError(t, command.Start())
	text := func() string {
		data, _ := os.ReadFile(log)
		return string(data)
	}
	require.Eventually(t, func() bool {
		dir, _, _ := checkpoint.Latest(out)
		return dir != ""
	}, time.Minute, 20*time.Millisecond, text())
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait(), text())
	require.Contains(t, text(), "go on with --resume_from_checkpoint true")
	dir, _, err := checkpoint.Latest(out)
	require.NoError(t, err)
	require.NotEmpty(t, dir)
}

func TestSftFaults(t *testing.T) {
	reason := filepath.Join(t.TempDir(), "error.json")
	t.Setenv("TORCHELASTIC_ERROR_FILE", reason)
	status, _, stderr := output(t, "", "sft", "--model_name_or_path", tinyModel(t), "--dataset_name", "absent.jsonl", "--output_dir", t.TempDir())
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "absent.jsonl")
	text, err := os.ReadFile(reason)
	require.NoError(t, err, "the launcher finds the reason in its file")
	require.Contains(t, string(text), "absent.jsonl")

	for want, args := range map[string][]string{
		"missing flags":                    {},
		"did you mean save_steps?":         {"--save_step", "2"},
		"max_length is 0":                  {"--max_length", "0", "--model_name_or_path", "x", "--dataset_name", "x", "--output_dir", t.TempDir()},
		"must be one of":                   {"--eval_strategy", "often"},
		"no such file":                     {"absent.yaml"},
		`"maybe" is neither true nor fals`: {"--packing=maybe"},
	} {
		status, _, stderr := output(t, "", append([]string{"sft"}, args...)...)
		require.NotZero(t, status, args)
		require.Contains(t, stderr, want, args)
	}
}

// What an Accelerate file says about FSDP reaches the ranks, and goes behind the flags.
func TestSftFollowsAccelerate(t *testing.T) {
	model, data, dir := tinyModel(t), conversations(t), t.TempDir()
	config := filepath.Join(dir, "fsdp.yaml")
	require.NoError(t, os.WriteFile(config, []byte("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n"+
		"  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"+
		"  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"+
		"  fsdp_activation_checkpointing: true\n  fsdp_offload_params: true\n"), 0o644))
	train := func(out string, more ...string) (status int, stdout, stderr string) {
		return output(t, "", append([]string{"launch", "--config_file", config, "sft", "--model_name_or_path", model, "--dataset_name", data,
			"--output_dir", out, "--max_steps", "2", "--per_device_train_batch_size", "2", "--use_peft_lora"}, more...)...)
	}
	status, stdout, stderr := train(filepath.Join(dir, "a"))
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "sharding: SHARD_GRAD_OP over 2 ranks")
	require.Contains(t, stdout, "mixed precision: bf16")
	require.DirExists(t, filepath.Join(dir, "a", "checkpoint-2", "pytorch_model_fsdp_0"))

	status, stdout, stderr = train(filepath.Join(dir, "b"), "--fsdp", "no_shard", "auto_wrap", "--save_format", "safetensors")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "sharding: NO_SHARD")
	require.NoDirExists(t, filepath.Join(dir, "b", "checkpoint-2", "pytorch_model_fsdp_0"))

	status, _, stderr = train(filepath.Join(dir, "c"), "--gradient_checkpointing")
	require.NotZero(t, status)
	require.Contains(t, stderr, "gradient_checkpointing and fsdp_activation_checkpointing are both on")
	status, _, stderr = train(filepath.Join(dir, "d"), "--fp16")
	require.NotZero(t, status)
	require.Contains(t, stderr, "fp16 needs a GPU")
}
