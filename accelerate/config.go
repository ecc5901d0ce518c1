// Package accelerate reads the YAML files that `accelerate config` writes and `accelerate launch` takes, so that
// they work here unchanged.
//
// Keys that Accelerate does not know, and those whose feature gofsdp does not have, are errors that name the
// key and its line. The options of FSDP are kept as they are written and handed to the ranks in the environment
// variables that Accelerate uses (FSDP_*, ACCELERATE_*).
package accelerate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Config is what gofsdp uses of an Accelerate file. The zero value is one process on one machine.
type Config struct {
	DistributedType string // NO, MULTI_CPU, MULTI_GPU or FSDP; "" is not told
	NumProcesses    int    // ranks on all machines together; 0 is not told (-1 in the file)
	NumMachines     int
	MachineRank     int
	MainProcessIP   string
	MainProcessPort int
	MixedPrecision  string // no, fp16 or bf16; "" is not told
	UseCPU          bool
	Debug           bool
	GPUIDs          string // such as "0,1"; "" or "all" is every GPU
	FSDP            []Option
}

// Option is one key of fsdp_config, in the order of the file.
type Option struct {
	Key   string // with the prefix fsdp_
	Value string // as Accelerate would print it: True and False for booleans
}

// Load reads the file at path.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("accelerate: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("accelerate: %s: %w", path, err)
	}
	return c, nil
}

// FSDPOption returns an option of fsdp_config; the prefix fsdp_ may be left out.
func (c *Config) FSDPOption(key string) (value string, ok bool) {
	key = fsdpPrefix + strings.TrimPrefix(key, fsdpPrefix)
	for _, o := range c.FSDP {
		if o.Key == key {
			return o.Value, true
		}
	}
	return "", false
}

// Validate reports every contradiction among the values.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("accelerate: "+format, args...)) }
	if c.NumProcesses < 0 {
		fault("num_processes: %d is not a number of ranks", c.NumProcesses)
	}
	if c.NumMachines < 0 {
		fault("num_machines: %d is not a number of machines", c.NumMachines)
	}
	if c.MachineRank < 0 || c.MachineRank >= max(c.NumMachines, 1) {
		fault("machine_rank: %d is not in 0 … num_machines-1 = %d", c.MachineRank, max(c.NumMachines, 1)-1)
	}
	if c.NumMachines > 1 && c.MainProcessIP == "" {
		fault("main_process_ip: is needed with %d machines", c.NumMachines)
	}
	if c.MainProcessPort < 0 || c.MainProcessPort > 65535 {
		fault("main_process_port: %d is not a port", c.MainProcessPort)
	}
	if c.MixedPrecision != "" && !slices.Contains(precisions, c.MixedPrecision) {
		fault("mixed_precision: %q, want one of %s", c.MixedPrecision, strings.Join(precisions, ", "))
	}
	sync, told := c.FSDPOption("sync_module_states")
	load, _ := c.FSDPOption("cpu_ram_efficient_loading")
	if told && sync == "False" && load == "True" {
		fault("fsdp_sync_module_states: False with fsdp_cpu_ram_efficient_loading: True leaves every rank but 0 without weights")
	}
	return errors.Join(faults...)
}

var precisions = []string{"no", "fp16", "bf16"}

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
		name := strings.ToUpper(o.Key)
		if renamed, ok := environNames[o.Key]; ok {
			name = renamed
		}
		set(name, o.Value)
	}
	return env
}

// environNames are the variables that are not called like their key.
var environNames = map[string]string{
	"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
	"fsdp_backward_prefetch_policy":      "FSDP_BACKWARD_PREFETCH",
}
