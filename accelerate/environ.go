package accelerate

import (
	"fmt"
	"slices"
	"strings"
)

// Environ returns the variables with which `accelerate launch` tells its processes about the configuration, as
// KEY=VALUE.
func (c *Config) Environ() []string {
	var env []string
	set := func(key, value string) { env = append(env, key+"="+value) }
	if c.MixedPrecision != "" {
		set("ACCELERATE_MIXED_PRECISION", c.MixedPrecision)
	}
	if c.UseCPU {
		set("ACCELERATE_USE_CPU", "True")
	}
	if c.Debug {
		set("ACCELERATE_DEBUG_MODE", "true")
	}
	if c.GPUIDs != "" && c.GPUIDs != "all" {
		set("CUDA_VISIBLE_DEVICES", c.GPUIDs)
	}
	if c.DistributedType == "FSDP" || len(c.FSDP) > 0 {
		set("ACCELERATE_USE_FSDP", "True")
	}
	for _, o := range c.FSDP {
		set(variable(o.Key), o.Value)
	}
	return env
}

// wrapClasses is the one option whose variable is not called like its key.
const wrapClasses, wrapClassesVariable = "fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP"

func variable(key string) string {
	if key == wrapClasses {
		return wrapClassesVariable
	}
	return strings.ToUpper(key)
}

// FromEnviron reads back what a launcher, this one or `accelerate launch`, tells its processes: mixed precision and, where
// ACCELERATE_USE_FSDP is true, the options of FSDP. environ holds KEY=VALUE as os.Environ does. unknown are variables
// FSDP_* that no option belongs to.
//
// `accelerate launch` exports options that nobody gave at their defaults. Where such a default contradicts what was given,
// what was given counts.
func FromEnviron(environ []string) (c *Config, unknown []string, err error) {
	c = &Config{}
	var options []string
	use := false
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		value = strings.TrimSpace(value)
		switch {
		case value == "" || value == "None":
		case name == "ACCELERATE_MIXED_PRECISION":
			c.MixedPrecision = strings.ToLower(value)
		case name == "ACCELERATE_USE_FSDP":
			use = truth(value) == "True"
		case name == "ACCELERATE_USE_DEEPSPEED" && truth(value) == "True":
			return nil, nil, fmt.Errorf("accelerate: %s: gofsdp does not do DeepSpeed", entry)
		case name == "ACCELERATE_USE_MEGATRON_LM" && truth(value) == "True":
			return nil, nil, fmt.Errorf("accelerate: %s: gofsdp does not do Megatron-LM", entry)
		case strings.HasPrefix(name, "FSDP_"):
			options = append(options, name+"="+value)
		}
	}
	if use {
		c.DistributedType = "FSDP"
		slices.Sort(options)
		for _, entry := range options {
			name, value, _ := strings.Cut(entry, "=")
			key := strings.ToLower(name)
			if name == wrapClassesVariable {
				key = wrapClasses
			}
			want, ok := fsdpKeys[key]
			if !ok {
				unknown = append(unknown, entry)
				continue
			}
			read, problem := want.read(value)
			if problem != "" {
				return nil, nil, fmt.Errorf("accelerate: %s: %s", name, problem)
			}
			c.FSDP = append(c.FSDP, Option{key, read})
		}
		c.dropDefaults()
	}
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	return c, unknown, nil
}

// dropDefaults leaves out which of the two options for the strategy was not given.
func (c *Config) dropDefaults() {
	const strategyKey, reshardKey = "fsdp_sharding_strategy", "fsdp_reshard_after_forward"
	version, _ := c.FSDPOption("fsdp_version")
	strategy, _ := c.FSDPOption(strategyKey)
	reshard, _ := c.FSDPOption(reshardKey)
	if strategy == "" || reshard == "" || strategy == reshard {
		return
	}
	drop := ""
	named := slices.Contains(shardingStrategies, reshard)
	switch {
	case version != "2" && !named:
		drop = reshardKey
	case strategy == "FULL_SHARD":
		drop = strategyKey
	case reshard == "True" || reshard == "FULL_SHARD":
		drop = reshardKey
	}
	c.FSDP = slices.DeleteFunc(c.FSDP, func(o Option) bool { return o.Key == drop })
}

// Override returns the options with those of over put in place of or after them. An option for the strategy replaces
// both that there are.
func Override(options, over []Option) []Option {
	replaced := func(key string) bool {
		return slices.ContainsFunc(over, func(o Option) bool {
			return o.Key == key || isStrategy(o.Key) && isStrategy(key)
		})
	}
	kept := slices.DeleteFunc(slices.Clone(options), func(o Option) bool { return replaced(o.Key) })
	return append(kept, over...)
}

func isStrategy(key string) bool {
	return key == "fsdp_sharding_strategy" || key == "fsdp_reshard_after_forward"
}
