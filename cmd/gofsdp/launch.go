package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/accelerate"
	"github.com/gofsdp/gofsdp/dist/launch"
)

// launchCmd is `gofsdp launch`. Its flags have the names of `accelerate launch`.
type launchCmd struct {
	ConfigFile      string        `name:"config_file" help:"An Accelerate YAML file; flags go before its values." type:"existingfile"`
	NumProcesses    int           `name:"num_processes" help:"Ranks on all machines together (default: one per machine)."`
	NumMachines     int           `name:"num_machines" help:"Machines (default 1)."`
	MachineRank     *int          `name:"machine_rank" help:"Which of the machines this is, from 0."`
	MainProcessIP   string        `name:"main_process_ip" help:"Address of machine 0."`
	MainProcessPort int           `name:"main_process_port" help:"Port of rank 0's store (default: a free one; 29500 on several machines)."`
	MixedPrecision  string        `name:"mixed_precision" help:"no, fp16 or bf16: exported as ACCELERATE_MIXED_PRECISION."`
	MaxRestarts     int           `name:"max_restarts" help:"How often to start all ranks again after a failure (one machine)."`
	GracePeriod     time.Duration `name:"grace_period" help:"Time that ranks get to end after another one failed." default:"30s"`
	Command         []string      `arg:"" passthrough:"partial" help:"The program and its arguments, or a command of gofsdp and its arguments."`
}

// Run starts the ranks and waits for them.
func (c *launchCmd) Run(ctx context.Context, commands commandNames) error {
	argv, err := c.argv(commands)
	if err != nil {
		return err
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	// The launcher hands signals on by itself: a context that ends with them would send each one twice.
	return launch.Launch(context.WithoutCancel(ctx), options, argv)
}

// commandNames are the names of this program's own commands.
type commandNames []string

// argv is the program to start: this one, if the first word is one of its commands.
func (c *launchCmd) argv(commands commandNames) ([]string, error) {
	argv := c.Command
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("launch: no program to start")
	}
	if !slices.Contains(commands, argv[0]) {
		return argv, nil
	}
	if argv[0] == "launch" {
		return nil, fmt.Errorf("launch: a launch inside a launch")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}
	return append([]string{self}, argv...), nil
}

// options merges the flags over the YAML file.
func (c *launchCmd) options() (launch.Options, error) {
	config := accelerate.Config{}
	if c.ConfigFile != "" {
		loaded, err := accelerate.Load(c.ConfigFile)
		if err != nil {
			return launch.Options{}, err
		}
		config = *loaded
	}
	if c.NumProcesses != 0 {
		config.NumProcesses = c.NumProcesses
	}
	if c.NumMachines != 0 {
		config.NumMachines = c.NumMachines
	}
	if c.MachineRank != nil {
		config.MachineRank = *c.MachineRank
	}
	if c.MainProcessIP != "" {
		config.MainProcessIP = c.MainProcessIP
	}
	if c.MainProcessPort != 0 {
		config.MainProcessPort = c.MainProcessPort
	}
	if c.MixedPrecision != "" {
		config.MixedPrecision = strings.ToLower(c.MixedPrecision)
	}
	if err := config.Validate(); err != nil {
		return launch.Options{}, err
	}
	if config.NumProcesses == 0 {
		config.NumProcesses = max(config.NumMachines, 1)
	}
	return launch.Options{
		NumProcesses: config.NumProcesses, NumMachines: config.NumMachines, MachineRank: config.MachineRank,
		MasterAddr: config.MainProcessIP, MasterPort: config.MainProcessPort,
		MaxRestarts: c.MaxRestarts, GracePeriod: c.GracePeriod, Env: config.Environ(),
	}, nil
}
