package sft

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/accelerate"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/torch"
)

// sharding is what a run does about sharding and precision, from its flags and from what a launcher handed over.
type sharding struct {
	config        fsdp.Config
	kinds         []string // classes whose modules become units; nil: the model's layers
	checkpointing bool     // asked for by fsdp_activation_checkpointing
	dcp           bool     // checkpoints as PyTorch's FSDP writes them
	asked         bool     // anything was asked for
	notes         []string // for people: settings without effect
}

// strategyWords are the words of TrainingArguments' fsdp that are strategies.
var strategyWords = []string{"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}

// sharding resolves the settings. launcher may be nil; given tells which flags were written, and may be nil.
func (c *Config) sharding(launcher *accelerate.Config, given func(flag string) bool) (*sharding, error) {
	if launcher == nil {
		launcher = &accelerate.Config{}
	}
	if given == nil {
		given = func(string) bool { return false }
	}
	own, err := c.fsdpOptions()
	if err != nil {
		return nil, err
	}
	all := &accelerate.Config{FSDP: accelerate.Override(launcher.FSDP, own)}
	if err := all.Validate(); err != nil {
		return nil, err
	}
	s := &sharding{asked: len(all.FSDP) > 0}
	version, _ := all.FSDPOption("version")
	s.config, err = fsdp.ParseOptions(func(key string) (string, bool) {
		if version == "2" && (key == "fsdp_forward_prefetch" || key == "fsdp_backward_prefetch") {
			return "", false // FSDP2 always prefetches one unit, both ways
		}
		return all.FSDPOption(key)
	})
	if err != nil {
		return nil, err
	}
	option := func(key string) string { v, _ := all.FSDPOption(key); return v }
	if s.config.Units != nil && slices.Contains([]string{"", "TRANSFORMER_BASED_WRAP"}, option("auto_wrap_policy")) {
		for _, kind := range strings.Split(option("transformer_layer_cls_to_wrap"), ",") {
			if kind = strings.TrimSpace(kind); kind != "" {
				s.kinds = append(s.kinds, kind)
			}
		}
	}
	if err := s.memory(c, option); err != nil {
		return nil, err
	}
	if s.checkpointing && c.GradCheckpointed && given("gradient_checkpointing") {
		return nil, fmt.Errorf("gradient_checkpointing and fsdp_activation_checkpointing are both on: they are the same, give one of them")
	}
	switch option("state_dict_type") {
	case "SHARDED_STATE_DICT":
		s.dcp = !given("save_format")
	case "FULL_STATE_DICT":
		s.note("fsdp_state_dict_type FULL_STATE_DICT: checkpoints are sharded all the same, and the result is whole")
	case "LOCAL_STATE_DICT":
		return nil, fmt.Errorf("fsdp_state_dict_type: LOCAL_STATE_DICT is not done: use SHARDED_STATE_DICT")
	}
	return s, s.precision(c, launcher.MixedPrecision, given)
}

func (s *sharding) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// memory takes the options that say where tensors are.
func (s *sharding) memory(c *Config, option func(string) string) error {
	var loading []string
	for _, key := range []string{"sync_module_states", "cpu_ram_efficient_loading"} {
		if option(key) == "True" {
			loading = append(loading, "fsdp_"+key)
		}
	}
	if len(loading) > 0 {
		s.note("%s: every rank reads its own rows of the weights and nothing else, so there is nothing to broadcast", strings.Join(loading, ", "))
	}
	s.config.SyncModuleStates = false
	if s.config.Offload.Params {
		s.note("fsdp_offload_params: this run is on CPUs, where everything is in host memory already")
	}
	s.checkpointing = option("activation_checkpointing") == "True"
	if option("activation_checkpointing_offload") == "True" {
		s.note("fsdp_activation_checkpointing_offload: this run is on CPUs, where everything is in host memory already")
	}
	if s.config.Ignore != nil && c.SaveMerged {
		return fmt.Errorf("save_merged and fsdp_ignored_modules exclude each other: a model is merged from its shards")
	}
	return nil
}

// precision takes mixed_precision: of the flags, else the launcher's.
func (s *sharding) precision(c *Config, launcher string, given func(flag string) bool) error {
	name := launcher
	switch {
	case c.BF16:
		name = "bf16"
	case c.FP16:
		name = "fp16"
	case launcher != "" && given(launcher): // bf16 of the launcher, and --bf16 false
		name = "no"
	}
	switch name {
	case "", "no":
	case "bf16":
		s.asked = true
		s.config.Precision = fsdp.MixedPrecision{ParamDType: torch.BFloat16, ReduceDType: torch.Float32}
		if slowBF16() {
			s.note("mixed precision bf16: this CPU has neither AMX nor AVX-512 BF16, and is many times slower in bf16 than in fp32")
		}
	case "fp16":
		return fmt.Errorf("mixed precision fp16 needs a GPU, and this run is on CPUs: use bf16 or no")
	default:
		return fmt.Errorf("mixed precision %q: want no, bf16 or fp16", name)
	}
	return nil
}

// mixedPrecision is the precision under Accelerate's name.
func (s *sharding) mixedPrecision() string {
	if s.config.Precision.ParamDType == torch.BFloat16 {
		return "bf16"
	}
	return "no"
}

// fsdpOptions are those of the flags fsdp and fsdp_config.
func (c *Config) fsdpOptions() ([]accelerate.Option, error) {
	file := &accelerate.Config{}
	if c.FSDPConfig != "" {
		data, err := os.ReadFile(c.FSDPConfig)
		if err != nil {
			return nil, fmt.Errorf("fsdp_config: %w", err)
		}
		if file, err = accelerate.ParseFSDP(data); err != nil {
			return nil, fmt.Errorf("fsdp_config: %s: %w", c.FSDPConfig, err)
		}
	}
	options := file.FSDP
	set := func(key, value string) error {
		was, ok := file.FSDPOption(key)
		if ok && was != value {
			return fmt.Errorf("fsdp says %s: %s, and fsdp_config %s: give one of them", key, value, was)
		}
		if !ok {
			options = append(options, accelerate.Option{Key: key, Value: value})
		}
		return nil
	}
	strategy := ""
	for _, word := range strings.FieldsFunc(strings.ToLower(strings.Join(c.FSDP, " ")), func(r rune) bool { return r == ' ' || r == ',' }) {
		var err error
		switch {
		case slices.Contains(strategyWords, word):
			if strategy != "" && strategy != word {
				return nil, fmt.Errorf("fsdp: %s and %s are both given: choose one", strategy, word)
			}
			strategy = word
			err = set("fsdp_sharding_strategy", strings.ToUpper(word))
		case word == "offload":
			err = set("fsdp_offload_params", "True")
		case word == "auto_wrap":
			// The policy that the file names, or else the one that it has settings for.
			if _, ok := file.FSDPOption("auto_wrap_policy"); ok {
				continue
			}
			policy := "TRANSFORMER_BASED_WRAP"
			if least, ok := file.FSDPOption("min_num_params"); ok && least != "0" {
				policy = "SIZE_BASED_WRAP"
			}
			err = set("fsdp_auto_wrap_policy", policy)
		case word == "true" || word == "false":
		default:
			err = fmt.Errorf("fsdp: %q is none of %s, offload, auto_wrap", word, strings.Join(strategyWords, ", "))
		}
		if err != nil {
			return nil, err
		}
	}
	return options, nil
}
