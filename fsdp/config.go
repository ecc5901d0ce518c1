package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Config are the settings of Wrap. The zero value makes the whole model one unit, fully sharded over the group.
type Config struct {
	// Strategy is PyTorch's sharding_strategy.
	Strategy Strategy
	// Units chooses the modules that become units of their own (auto_wrap_policy); the root is always a unit and takes
	// what is left. Nil: only the root (NO_WRAP).
	Units Policy
	// Together lists modules, by name, that make one unit together, as fully_shard on a list of modules. The unit is
	// gathered when the first of them runs and freed when all have run.
	Together [][]string
	// Reshard says when gathered parameters are freed (reshard_after_forward).
	Reshard Reshard
	// ReshardSize is reshard_after_forward as an integer: after forward, parameters of all units but the root stay cut over
	// groups of this many neighbouring ranks, so that backward gathers among them only. It divides the number of ranks
	// of the shard group. 0 is off, 1 means ReshardAfterBackward, the whole group ReshardAfterForward.
	ReshardSize int
	// Precision are the types to compute and to reduce in (mp_policy).
	Precision MixedPrecision
	// PerUnit, if not nil, gives settings of single units; the root's name is "".
	PerUnit func(name string, module any) UnitOptions
	// Offload keeps what is sharded in host memory (offload_policy, cpu_offload).
	Offload Offload
	// Prefetch says which units are gathered ahead of their use.
	Prefetch Prefetch
	// DivideFactor divides the summed gradients (set_gradient_divide_factor); 0 means the number of ranks.
	DivideFactor float64
	// DirectBytes is the size from which a parameter is gathered by a collective of its own, straight into its place,
	// so that it is never in memory twice; 0 means 8 MiB, negative none.
	DirectBytes int64
	// Device is where gathered parameters live and layers compute; the zero value is the CPU. On torch.Meta nothing has
	// data: a model of any size can be counted.
	Device torch.Device
	// Branches lets ranks leave out units in forward, on data that they alone have. Units are then gathered on all ranks
	// in the order of declaration, up to the one that runs, whether a rank uses them or not, and their gradients are
	// reduced with zeros for ranks that did not. Units must run in the order of declaration. Without it every rank must
	// run the same units.
	Branches bool
	// CheckOrder compares, before each unit's forward, which unit every rank is about to run: one small all-gather more.
	// Ranks that run different units then get an error that names them before the first such unit runs. Without it they
	// get one too: at once where the units are of equal size, after a few seconds where sizes differ (over NCCL after its
	// timeout). CheckOrder also finds a forward without gradients on some ranks only.
	CheckOrder bool
	// Ignore leaves parameters alone (ignored_params): they stay whole on every rank, and reducing their gradients is the
	// caller's business.
	Ignore func(n nn.Named) bool
	// SyncModuleStates makes rank 0's parameters and buffers everybody's while Wrap cuts them (sync_module_states). The
	// other ranks' may be on the meta device. It goes parameter by parameter, so a rank holds one whole parameter at most.
	SyncModuleStates bool
	// Comm replaces collectives.
	Comm Communication
	// Trace, if not nil, is told every step of every unit in order: "unshard", "wait", "reshard", "post-backward",
	// "reduce-scatter", "all-reduce". For tests and profiles.
	Trace func(event, unit string)
}

// UnitOptions are settings of one unit that differ from the Config's. The zero value changes nothing.
type UnitOptions struct {
	// Precision replaces Config.Precision where it is not nil.
	Precision *MixedPrecision
	// Reshard replaces Config.Reshard, and ReshardSize, where it is not ReshardAuto.
	Reshard Reshard
	// NoBackwardUnshard says that the unit's backward needs no parameters, as an embedding's (set_unshard_in_backward).
	NoBackwardUnshard bool
}

func (c Config) withDefaults(ranks int) (Config, error) {
	if c.Strategy < FullShard || c.Strategy > HybridShardZeRO2 {
		return c, fmt.Errorf("fsdp: Config.Strategy is %d", c.Strategy)
	}
	if c.Reshard < ReshardAuto || c.Reshard > ReshardAfterBackward {
		return c, fmt.Errorf("fsdp: Config.Reshard is %d", c.Reshard)
	}
	if c.ReshardSize < 0 {
		return c, fmt.Errorf("fsdp: Config.ReshardSize is %d, must not be negative", c.ReshardSize)
	}
	if c.ReshardSize > 0 && c.Reshard != ReshardAuto {
		return c, fmt.Errorf("fsdp: Config.Reshard and ReshardSize are both given")
	}
	if !(c.DivideFactor >= 0) {
		return c, fmt.Errorf("fsdp: Config.DivideFactor is %v, must not be negative", c.DivideFactor)
	}
	if c.Prefetch.Limit < 0 {
		return c, fmt.Errorf("fsdp: Config.Prefetch.Limit is %d, must not be negative", c.Prefetch.Limit)
	}
	if c.Prefetch.Backward < BackwardPre || c.Prefetch.Backward > BackwardNone {
		return c, fmt.Errorf("fsdp: Config.Prefetch.Backward is %d", c.Prefetch.Backward)
	}
	if err := c.Precision.check(); err != nil {
		return c, err
	}
	switch c.Strategy {
	case ShardGradOp, NoShard, HybridShardZeRO2:
		c.Reshard, c.ReshardSize = ReshardAfterBackward, 0
	}
	if c.DivideFactor == 0 {
		c.DivideFactor = float64(ranks)
	}
	if c.Prefetch.Depth == 0 {
		c.Prefetch.Depth = 1
	}
	if c.DirectBytes == 0 {
		c.DirectBytes = 8 << 20
	}
	return c, nil
}
