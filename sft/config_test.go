package sft_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/sft"
)

func TestValidateNamesEveryNumberOutOfRange(t *testing.T) {
	c := sft.DefaultConfig()
	require.NoError(t, c.Validate())
	for want, change := range map[string]func(c *sft.Config){
		"max_length is 9223372036854775807":    func(c *sft.Config) { c.MaxLength = math.MaxInt },
		"per_device_train_batch_size is 9223":  func(c *sft.Config) { c.TrainBatchSize = math.MaxInt },
		"per_device_eval_batch_size is 0":      func(c *sft.Config) { c.EvalBatchSize = 0 },
		"gradient_accumulation_steps is 9223":  func(c *sft.Config) { c.AccumulateSteps = math.MaxInt },
		"ddp_timeout is 9223372036854775807":   func(c *sft.Config) { c.DDPTimeout = math.MaxInt },
		"pad_to_multiple_of is -1":             func(c *sft.Config) { c.PadToMultipleOf = -1 },
		"pad_to_multiple_of is 92233720368547": func(c *sft.Config) { c.PadToMultipleOf = math.MaxInt },
		"logging_steps is -1":                  func(c *sft.Config) { c.LoggingSteps = -1 },
		"eval_steps is -1":                     func(c *sft.Config) { c.EvalSteps = -1 },
		"num_train_epochs is NaN":              func(c *sft.Config) { c.NumTrainEpochs = math.NaN() },
		"num_train_epochs is 1e+300":           func(c *sft.Config) { c.NumTrainEpochs = 1e300 },
		"learning_rate is NaN":                 func(c *sft.Config) { c.LearningRate = math.NaN() },
		"warmup_steps is -1":                   func(c *sft.Config) { c.WarmupSteps = -1 },
		"warmup_ratio is 2":                    func(c *sft.Config) { c.WarmupRatio = 2 },
		"weight_decay is NaN":                  func(c *sft.Config) { c.WeightDecay = math.NaN() },
		"adam_beta1 is 1":                      func(c *sft.Config) { c.AdamBeta1 = 1 },
		"adam_beta2 is NaN":                    func(c *sft.Config) { c.AdamBeta2 = math.NaN() },
		"adam_epsilon is +Inf":                 func(c *sft.Config) { c.AdamEpsilon = math.Inf(1) },
		"max_grad_norm is NaN":                 func(c *sft.Config) { c.MaxGradNorm = math.NaN() },
		"save_steps is 1e+300":                 func(c *sft.Config) { c.SaveSteps = 1e300 },
		"lora_r is 0":                          func(c *sft.Config) { c.UseLoRA, c.LoRAR = true, 0 },
		"lora_r is 1000000000000":              func(c *sft.Config) { c.UseLoRA, c.LoRAR = true, 1e12 },
		"adam_beta1 is 0":                      func(c *sft.Config) { c.AdamBeta1 = 0 },
		"adam_epsilon is 0":                    func(c *sft.Config) { c.AdamEpsilon = 0 },
		"eval_steps and logging_steps are 0":   func(c *sft.Config) { c.EvalStrategy, c.LoggingSteps = "steps", 0 },
		"lora_alpha is NaN":                    func(c *sft.Config) { c.UseLoRA, c.LoRAAlpha = true, math.NaN() },
		"lora_dropout is NaN":                  func(c *sft.Config) { c.LoRADropout = math.NaN() },
		`lr_scheduler_type is "square"`:        func(c *sft.Config) { c.LRSchedulerType = "square" },
	} {
		c := sft.DefaultConfig()
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
