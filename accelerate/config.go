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
	faults = append(faults, c.validateFSDP()...)
	return errors.Join(faults...)
}

// validateFSDP reports options of FSDP that contradict each other.
func (c *Config) validateFSDP() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("accelerate: "+format, args...)) }
	sync, told := c.FSDPOption("sync_module_states")
	load, _ := c.FSDPOption("cpu_ram_efficient_loading")
	if told && sync == "False" && load == "True" {
		fault("fsdp_sync_module_states: False with fsdp_cpu_ram_efficient_loading: True leaves every rank but 0 without weights")
	}
	version, _ := c.FSDPOption("version")
	strategy, _ := c.FSDPOption("sharding_strategy")
	reshard, _ := c.FSDPOption("reshard_after_forward")
	named := slices.Contains(shardingStrategies, reshard)
	keeps := slices.Contains([]string{"SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD_ZERO2"}, strategy)
	switch {
	case reshard == "":
	case named && version == "2":
		fault("fsdp_reshard_after_forward: %s is a sharding strategy, which it is with fsdp_version 1 only; with 2 it is true, false or a number of ranks", reshard)
	case !named && version != "2":
		fault("fsdp_reshard_after_forward: %s is for fsdp_version 2; with version 1 it is a sharding strategy", reshard)
	case strategy == "":
	case named && strategy != reshard, !named && keeps != (reshard == "False"):
		fault("fsdp_sharding_strategy: %s and fsdp_reshard_after_forward: %s contradict each other: give one of them", strategy, reshard)
	}
	offload, _ := c.FSDPOption("activation_checkpointing_offload")
	checkpointing, _ := c.FSDPOption("activation_checkpointing")
	if offload == "True" && (checkpointing != "True" || version != "2") {
		fault("fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing and fsdp_version 2")
	}
	return faults
}

var precisions = []string{"no", "fp16", "bf16"}
