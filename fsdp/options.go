package fsdp

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/torch/nn"
)

// ParseOptions makes a Config of the keys of fsdp_config in an Accelerate file. lookup returns a key's value, as
// accelerate.Config.FSDPOption does. Read are
//
//	fsdp_version                         1 (default) or 2: what fsdp_reshard_after_forward means
//	fsdp_sharding_strategy               a name, or 1 to 5
//	fsdp_reshard_after_forward           version 1: the same; version 2: true, false, or a number of ranks
//	fsdp_offload_params                  true or false
//	fsdp_auto_wrap_policy                TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP
//	fsdp_transformer_layer_cls_to_wrap   class names, comma separated
//	fsdp_min_num_params                  of SIZE_BASED_WRAP; default 1e8
//	fsdp_backward_prefetch               BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH
//	fsdp_forward_prefetch                true or false
//	fsdp_limit_all_gathers               true is a limit of 2
//	fsdp_sync_module_states              true or false
//	fsdp_ignored_modules                 a regular expression that whole names of modules match
//
// What is absent keeps the Config's default, TRANSFORMER_BASED_WRAP without classes leaves Units nil for the model to choose.
// Other keys are not this package's.
func ParseOptions(lookup func(key string) (value string, ok bool)) (Config, error) {
	o := options{lookup: lookup}
	var c Config
	version := o.text("fsdp_version")
	if version != "" && version != "1" && version != "2" {
		o.fail("fsdp_version", version, "1 or 2")
	}
	if s := o.text("fsdp_sharding_strategy"); s != "" {
		o.parse("fsdp_sharding_strategy", func() (err error) { c.Strategy, err = ParseStrategy(s); return err })
	}
	if s := o.text("fsdp_reshard_after_forward"); s != "" {
		o.reshard(&c, s, version == "2")
	}
	c.Offload.Params = o.flag("fsdp_offload_params")
	c.SyncModuleStates = o.flag("fsdp_sync_module_states")
	switch s := o.text("fsdp_auto_wrap_policy"); strings.ToUpper(s) {
	case "", "TRANSFORMER_BASED_WRAP":
		if kinds := o.list("fsdp_transformer_layer_cls_to_wrap"); len(kinds) > 0 {
			c.Units = ByKind(kinds...)
		}
	case "SIZE_BASED_WRAP":
		c.Units = BySize(o.count("fsdp_min_num_params", 1e8))
	case "NO_WRAP":
		c.Units = func(Candidate) bool { return false }
	default:
		o.fail("fsdp_auto_wrap_policy", s, "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP")
	}
	if s := o.text("fsdp_backward_prefetch"); s != "" {
		o.parse("fsdp_backward_prefetch", func() (err error) {
			c.Prefetch.Backward, err = ParseBackwardPrefetch(strings.ToUpper(s))
			return err
		})
	}
	if o.text("fsdp_forward_prefetch") != "" {
		c.Prefetch.NoForward = !o.flag("fsdp_forward_prefetch")
	}
	if o.flag("fsdp_limit_all_gathers") {
		c.Prefetch.Limit = 2
	}
	if s := o.text("fsdp_ignored_modules"); s != "" {
		o.parse("fsdp_ignored_modules", func() (err error) { c.Ignore, err = ignoreModules(s); return err })
	}
	return c, o.err
}

// ignoreModules ignores the parameters of all modules whose whole name matches.
func ignoreModules(pattern string) (func(nn.Named) bool, error) {
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		return nil, err
	}
	return func(n nn.Named) bool {
		for i := range n.Name {
			if n.Name[i] == '.' && re.MatchString(n.Name[:i]) {
				return true
			}
		}
		return false
	}, nil
}

// options reads keys and keeps the first error.
type options struct {
	lookup func(string) (string, bool)
	err    error
}

func (o *options) fail(key, value, want string) {
	if o.err == nil {
		o.err = fmt.Errorf("fsdp: %s: %q: want %s", key, value, want)
	}
}

func (o *options) parse(key string, f func() error) {
	if err := f(); err != nil && o.err == nil {
		o.err = fmt.Errorf("fsdp: %s: %w", key, err)
	}
}

// text is a key's value; null and None are none.
func (o *options) text(key string) string {
	v, _ := o.lookup(key)
	v = strings.TrimSpace(v)
	switch strings.ToLower(v) {
	case "null", "none", "~":
		return ""
	}
	return v
}

func (o *options) list(key string) []string {
	var list []string
	for _, s := range strings.Split(o.text(key), ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}

func (o *options) flag(key string) bool {
	s := o.text(key)
	switch strings.ToLower(s) {
	case "true", "yes", "on", "1":
		return true
	case "", "false", "no", "off", "0":
		return false
	}
	o.fail(key, s, "true or false")
	return false
}

func (o *options) count(key string, absent int64) int64 {
	s := o.text(key)
	if s == "" {
		return absent
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n < 1<<53) {
		o.fail(key, s, "a number of parameters")
	}
	return int64(n)
}

func (o *options) reshard(c *Config, s string, second bool) {
	const key = "fsdp_reshard_after_forward"
	if !second {
		o.parse(key, func() error {
			strategy, err := ParseStrategy(s)
			if err != nil {
				return fmt.Errorf("%w (with fsdp_version 1 it is a sharding strategy)", err)
			}
			if given := o.text("fsdp_sharding_strategy"); given != "" && strategy != c.Strategy {
				return fmt.Errorf("%v, but fsdp_sharding_strategy is %v: give one of them", strategy, c.Strategy)
			}
			c.Strategy = strategy
			return nil
		})
		return
	}
	switch strings.ToLower(s) {
	case "true", "yes", "on":
	case "false", "no", "off":
		c.Reshard = ReshardAfterBackward
	default:
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			o.fail(key, s, "true, false or a number of ranks (with fsdp_version 2)")
		}
		c.ReshardSize = n
	}
}
