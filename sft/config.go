package sft

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/sft/schedule"
)

// Config are the settings of a run, under the names that TrainingArguments, TRL's SFTConfig and PEFT's training script
// give them. The tags are the command line of `gofsdp sft`. DefaultConfig holds the defaults of those programs.
type Config struct {
	ModelNameOrPath string `name:"model_name_or_path" required:"" placeholder:"DIR" help:"Model folder (config.json, safetensors, tokenizer.json)."`
	DatasetName     string `name:"dataset_name" required:"" placeholder:"PATH" help:"Folder with train.jsonl and eval.jsonl (or test.jsonl, validation.jsonl), or one JSONL file."`
	OutputDir       string `name:"output_dir" required:"" placeholder:"DIR" help:"Where checkpoints, metrics and the result go."`

	MaxLength        int     `name:"max_length" aliases:"max_seq_length,max_seq_len" default:"1024" help:"Tokens per example; longer ones are cut at the end."`
	MaxTrainSamples  int     `name:"max_train_samples" help:"Use only the first so many training rows; 0: all."`
	MaxEvalSamples   int     `name:"max_eval_samples" help:"Use only the first so many evaluation rows; 0: all."`
	NumTrainEpochs   float64 `name:"num_train_epochs" default:"3" help:"Passes over the data."`
	MaxSteps         int     `name:"max_steps" default:"-1" help:"Optimiser steps; overrides num_train_epochs if positive."`
	TrainBatchSize   int     `name:"per_device_train_batch_size" default:"8" help:"Examples per rank and micro-batch."`
	EvalBatchSize    int     `name:"per_device_eval_batch_size" default:"8" help:"Examples per rank in evaluation."`
	AccumulateSteps  int     `name:"gradient_accumulation_steps" default:"1" help:"Micro-batches per optimiser step."`
	GroupByLength    bool    `name:"group_by_length" negatable:"" help:"Batch examples of similar length."`
	PadToMultipleOf  int     `name:"pad_to_multiple_of" help:"Round the length of batches up to a multiple."`
	Packing          bool    `name:"packing" negatable:"" help:"Pack examples into rows of max_length (best-fit decreasing), without padding."`
	DropLast         bool    `name:"dataloader_drop_last" negatable:"" help:"Drop the last incomplete batch of an epoch."`
	LearningRate     float64 `name:"learning_rate" default:"2e-5" help:"Peak learning rate."`
	LRSchedulerType  string  `name:"lr_scheduler_type" default:"linear" help:"Learning-rate schedule, as in transformers."`
	WarmupSteps      float64 `name:"warmup_steps" help:"Warm-up: steps, or a share of all steps below 1."`
	WarmupRatio      float64 `name:"warmup_ratio" help:"Warm-up as a share of all steps."`
	WeightDecay      float64 `name:"weight_decay" help:"Decoupled weight decay of AdamW, for all but biases and norms."`
	AdamBeta1        float64 `name:"adam_beta1" default:"0.9" help:"AdamW's beta1."`
	AdamBeta2        float64 `name:"adam_beta2" default:"0.999" help:"AdamW's beta2."`
	AdamEpsilon      float64 `name:"adam_epsilon" default:"1e-8" help:"AdamW's epsilon."`
	MaxGradNorm      float64 `name:"max_grad_norm" default:"1" help:"Clip gradients to this norm; 0: do not."`
	Seed             int64   `name:"seed" default:"42" help:"Seed of adapter weights, data order and dropout."`
	GradCheckpointed bool    `name:"gradient_checkpointing" default:"true" negatable:"" help:"Recompute activations in backward instead of keeping them."`

	LoggingSteps   int     `name:"logging_steps" default:"10" help:"Write a log line every so many steps (not on a terminal)."`
	EvalStrategy   string  `name:"eval_strategy" default:"no" enum:"no,steps,epoch" help:"When to evaluate: no, steps or epoch. With steps, epoch or eval_on_start, evaluation also runs at the end."`
	EvalSteps      int     `name:"eval_steps" help:"Evaluate every so many steps with eval_strategy steps; 0: logging_steps."`
	EvalOnStart    bool    `name:"eval_on_start" negatable:"" help:"Evaluate before the first step."`
	SaveStrategy   string  `name:"save_strategy" default:"steps" enum:"no,steps,epoch" help:"When to save: no, steps or epoch. Except with no, the last step is saved too; a run that is stopped always saves."`
	SaveSteps      float64 `name:"save_steps" default:"500" help:"Save a checkpoint every so many steps, or share of all steps below 1."`
	SaveTotalLimit int     `name:"save_total_limit" help:"Keep only so many checkpoints; 0: all."`
	SaveAsync      bool    `name:"save_async" negatable:"" help:"Write checkpoints while training goes on; needs memory for a copy of what is saved."`
	SaveFormat     string  `name:"save_format" default:"safetensors" enum:"safetensors,dcp" help:"Format of checkpoints: safetensors, or dcp, PyTorch's own in Accelerate's folders, from which PyTorch can go on. Both are resumed from. A launcher's SHARDED_STATE_DICT means dcp where this is not given."`
	LoadBest       bool    `name:"load_best_model_at_end" negatable:"" help:"Make the result of the checkpoint with the lowest evaluation loss, which save_total_limit never deletes. Needs eval_strategy and save_strategy alike."`
	BestMetric     string  `name:"metric_for_best_model" default:"loss" enum:"loss,eval_loss" help:"What load_best_model_at_end looks at: the evaluation loss."`
	GreaterBetter  bool    `name:"greater_is_better" negatable:"" help:"Must be off: a loss is better when it is lower."`
	SaveMerged     bool    `name:"save_merged" negatable:"" help:"With use_peft_lora: write the base model with the adapter merged in as well, in bf16."`
	Resume         string  `name:"resume_from_checkpoint" placeholder:"DIR|true" help:"Checkpoint folder to go on from, or true: the newest complete one in output_dir; without one, true is an error."`
	TensorBoard    bool    `name:"tensorboard" negatable:"" help:"Write TensorBoard event files as well."`
	DDPTimeout     int     `name:"ddp_timeout" default:"1800" help:"Seconds after which a collective that some rank does not join fails."`

	FSDP       []string `name:"fsdp" alone:"true" placeholder:"WORDS" help:"Sharding, as TrainingArguments has it: full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2; and offload, auto_wrap. Goes before what a launcher says."`
	FSDPConfig string   `name:"fsdp_config" placeholder:"FILE" help:"JSON file with more options of FSDP, under the names of Accelerate's fsdp_config, with or without fsdp_. They go before those of a launcher."`
	BF16       bool     `name:"bf16" negatable:"" help:"Compute in bf16; weights that are trained stay fp32, and gradients are summed in fp32. CPUs without bf16 units are far slower so."`
	FP16       bool     `name:"fp16" negatable:"" help:"Compute in fp16: needs a GPU."`

	UseLoRA     bool     `name:"use_peft_lora" negatable:"" help:"Train LoRA adapters instead of the whole model."`
	LoRAR       int      `name:"lora_r" default:"64" help:"Rank of the adapters."`
	LoRAAlpha   float64  `name:"lora_alpha" default:"16" help:"Scaling numerator of the adapters."`
	LoRADropout float64  `name:"lora_dropout" default:"0.1" help:"Dropout before the adapters."`
	LoRATargets []string `name:"lora_target_modules" default:"q_proj,k_proj,v_proj,o_proj,down_proj,up_proj,gate_proj" help:"Layers that get adapters, or all-linear."`
	UseRSLoRA   bool     `name:"use_rslora" negatable:"" help:"Scale adapters by alpha/sqrt(r)."`
	Use4Bit     bool     `name:"use_4bit_quantization" negatable:"" help:"Keep the base model's linear layers in 4 bits."`
	QuantType   string   `name:"bnb_4bit_quant_type" default:"nf4" enum:"nf4,fp4" help:"4-bit data type."`
	NestedQuant bool     `name:"use_nested_quant" negatable:"" help:"Quantise the scales of the 4-bit weights as well."`
}

// DefaultConfig are the defaults of the command line.
func DefaultConfig() Config {
	return Config{
		MaxLength: 1024, NumTrainEpochs: 3, MaxSteps: -1, TrainBatchSize: 8, EvalBatchSize: 8, AccumulateSteps: 1,
		LearningRate: 2e-5, LRSchedulerType: "linear", AdamBeta1: 0.9, AdamBeta2: 0.999, AdamEpsilon: 1e-8, MaxGradNorm: 1,
		Seed: 42, GradCheckpointed: true, LoggingSteps: 10, EvalStrategy: "no", SaveStrategy: "steps", SaveSteps: 500,
		SaveFormat: "safetensors", BestMetric: "loss",
		DDPTimeout: 1800, LoRAR: 64, LoRAAlpha: 16, LoRADropout: 0.1,
		LoRATargets: []string{"q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"}, QuantType: "nf4",
	}
}

// maxRows bounds the rows of a batch, far above what any memory holds.
const maxRows = 1 << 20

// maxLoRARank bounds the rank of adapters, far above the width of any layer.
const maxLoRARank = 1 << 17

// Validate reports every fault of the settings together.
func (c *Config) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, v := range []struct {
		name         string
		value        int
		least, limit int
	}{
		{"max_length", c.MaxLength, 1, math.MaxInt32},
		{"per_device_train_batch_size", c.TrainBatchSize, 1, maxRows},
		{"per_device_eval_batch_size", c.EvalBatchSize, 1, maxRows},
		{"gradient_accumulation_steps", c.AccumulateSteps, 1, math.MaxInt32},
		{"ddp_timeout", c.DDPTimeout, 1, math.MaxInt32},
		{"pad_to_multiple_of", c.PadToMultipleOf, 0, math.MaxInt32},
		{"logging_steps", c.LoggingSteps, 0, math.MaxInt},
		{"eval_steps", c.EvalSteps, 0, math.MaxInt},
	} {
		switch {
		case v.value < v.least:
			bad("%s is %d, must be at least %d", v.name, v.value, v.least)
		case v.value > v.limit:
			bad("%s is %d, must be at most %d", v.name, v.value, v.limit)
		}
	}
	if c.MaxSteps < 1 && !(c.NumTrainEpochs > 0 && c.NumTrainEpochs <= math.MaxInt32) {
		bad("num_train_epochs is %v and max_steps is %d: one of them must be positive, and epochs at most %d", c.NumTrainEpochs, c.MaxSteps, math.MaxInt32)
	}
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"learning_rate", c.LearningRate}, {"warmup_steps", c.WarmupSteps}, {"weight_decay", c.WeightDecay},
		{"max_grad_norm", c.MaxGradNorm},
	} {
		if !(v.value >= 0) || math.IsInf(v.value, 0) { // NaN compares as false
			bad("%s is %v, must be a finite number and not negative", v.name, v.value)
		}
	}
	for _, v := range []struct {
		name  string
		value float64
	}{{"adam_beta1", c.AdamBeta1}, {"adam_beta2", c.AdamBeta2}} {
		if !(v.value > 0 && v.value < 1) {
			bad("%s is %v, must be in (0, 1)", v.name, v.value)
		}
	}
	if !(c.AdamEpsilon > 0) || math.IsInf(c.AdamEpsilon, 0) {
		bad("adam_epsilon is %v, must be a finite number above 0", c.AdamEpsilon)
	}
	if !(c.LoRADropout >= 0 && c.LoRADropout < 1) {
		bad("lora_dropout is %v, must be in [0, 1)", c.LoRADropout)
	}
	if !(c.WarmupRatio >= 0 && c.WarmupRatio <= 1) {
		bad("warmup_ratio is %v, must be in [0, 1]", c.WarmupRatio)
	}
	if !slices.Contains(schedule.Names(), c.LRSchedulerType) {
		bad("lr_scheduler_type is %q, must be one of %s", c.LRSchedulerType, strings.Join(schedule.Names(), ", "))
	}
	if c.UseLoRA && (c.LoRAR < 1 || c.LoRAR > maxLoRARank) {
		bad("lora_r is %d, must be from 1 to %d", c.LoRAR, maxLoRARank)
	}
	if c.UseLoRA && (math.IsNaN(c.LoRAAlpha) || math.IsInf(c.LoRAAlpha, 0)) {
		bad("lora_alpha is %v, must be a finite number", c.LoRAAlpha)
	}
	if c.Use4Bit && !c.UseLoRA {
		bad("use_4bit_quantization needs use_peft_lora: 4-bit weights cannot be trained")
	}
	if c.SaveStrategy == "steps" && !(c.SaveSteps > 0 && c.SaveSteps <= math.MaxInt32) {
		bad("save_steps is %v, must be positive and at most %d", c.SaveSteps, math.MaxInt32)
	}
	if !slices.Contains([]string{"", "no", "steps", "epoch"}, c.EvalStrategy) {
		bad("eval_strategy is %q, must be no, steps or epoch", c.EvalStrategy)
	}
	if c.EvalStrategy == "steps" && c.EvalSteps == 0 && c.LoggingSteps == 0 {
		bad("eval_strategy is steps, but eval_steps and logging_steps are 0: one of them must say how often")
	}
	if !slices.Contains([]string{"", "no", "steps", "epoch"}, c.SaveStrategy) {
		bad("save_strategy is %q, must be no, steps or epoch", c.SaveStrategy)
	}
	if c.BF16 && c.FP16 {
		bad("bf16 and fp16 are both on: choose one")
	}
	c.validateSaving(bad)
	return errors.Join(faults...)
}

func (c *Config) validateSaving(bad func(format string, args ...any)) {
	if !slices.Contains([]string{"", "safetensors", "dcp"}, c.SaveFormat) {
		bad("save_format is %q, must be safetensors or dcp", c.SaveFormat)
	}
	if !slices.Contains([]string{"", "loss", "eval_loss"}, c.BestMetric) || c.GreaterBetter {
		bad("metric_for_best_model is %q and greater_is_better %t: only the evaluation loss is there, and lower is better", c.BestMetric, c.GreaterBetter)
	}
	if c.SaveTotalLimit < 0 {
		bad("save_total_limit is %d, must not be negative", c.SaveTotalLimit)
	}
	if c.SaveMerged && !c.UseLoRA {
		bad("save_merged needs use_peft_lora: there is no adapter to merge")
	}
	if !c.LoadBest {
		return
	}
	if c.EvalStrategy != c.SaveStrategy || !c.evaluates() {
		bad("load_best_model_at_end needs eval_strategy and save_strategy alike, steps or epoch: they are %q and %q", c.EvalStrategy, c.SaveStrategy)
	} else if every := c.evalEvery(1); c.SaveStrategy == "steps" && c.SaveSteps >= 1 && every > 0 && int(c.SaveSteps)%every != 0 {
		bad("load_best_model_at_end needs save_steps to be a multiple of eval_steps: they are %v and %d", c.SaveSteps, every)
	}
}

// metricsPath, curvePath and the like are the files of a run in its output folder.
func (c *Config) metricsPath() string { return filepath.Join(c.OutputDir, "metrics.jsonl") }
func (c *Config) curvePath() string   { return filepath.Join(c.OutputDir, "learning_curve.png") }
func (c *Config) summaryPath() string { return filepath.Join(c.OutputDir, "summary.json") }

// evaluates tells whether there is anything to evaluate for.
func (c *Config) evaluates() bool {
	return c.EvalOnStart || c.EvalStrategy != "no" && c.EvalStrategy != ""
}

// evalEvery is the number of steps between evaluations, 0 for none.
func (c *Config) evalEvery(perEpoch int) int {
	switch c.EvalStrategy {
	case "steps":
		if c.EvalSteps > 0 {
			return c.EvalSteps
		}
		return c.LoggingSteps
	case "epoch":
		return perEpoch
	}
	return 0
}

// saveEvery is the number of steps between checkpoints, 0 for none.
func (c *Config) saveEvery(total, perEpoch int) int {
	switch c.SaveStrategy {
	case "steps":
		if c.SaveSteps < 1 {
			return max(1, int(math.Ceil(c.SaveSteps*float64(total))))
		}
		return int(c.SaveSteps)
	case "epoch":
		return perEpoch
	}
	return 0
}

// targets are the adapter's target modules; one word may hold several, separated by commas.
func (c *Config) targets() peft.Modules {
	var list []string
	for _, t := range c.LoRATargets {
		for _, s := range strings.Split(t, ",") {
			if s = strings.TrimSpace(s); s != "" {
				list = append(list, s)
			}
		}
	}
	if len(list) == 1 && list[0] == peft.AllLinear.Regexp {
		return peft.AllLinear
	}
	return peft.Targets(list...)
}
