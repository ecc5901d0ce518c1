package fsdp

import (
	"fmt"
	"slices"
)

// Reshard says when a unit gives its gathered parameters back.
type Reshard int

// When to reshard. The zero value is the default of fully_shard.
const (
	// ReshardAuto reshards every unit after forward but the root, which backward needs first.
	ReshardAuto Reshard = iota
	// ReshardAfterForward reshards the root too (FULL_SHARD, ZeRO-3).
	ReshardAfterForward
	// ReshardAfterBackward keeps parameters from forward to backward (SHARD_GRAD_OP, ZeRO-2).
	ReshardAfterBackward
)

// Policy chooses the modules that become units of their own. name is the module's path in the root.
type Policy func(name string, module any) bool

// Config are the settings of Wrap. The zero value makes the whole model one unit.
type Config struct {
	// Units chooses the units; the root is always one and takes what is left. Nil: only the root.
	Units Policy
	// Reshard says when gathered parameters are freed.
	Reshard Reshard
	// Prefetch is how many units ahead of the computation are gathered; 0 means 1, negative none.
	Prefetch int
	// DivideFactor divides the summed gradients; 0 means the number of ranks.
	DivideFactor float64
	// DirectBytes is the size from which a parameter is gathered by a collective of its own, straight into its place,
	// so that it is never in memory twice; 0 means 8 MiB, negative none.
	DirectBytes int64
	// Trace, if not nil, is told every step of every unit in order: "unshard", "wait", "reshard", "post-backward",
	// "reduce-scatter". For tests and profiles.
	Trace func(event, unit string)
}

func (c Config) withDefaults(size int) (Config, error) {
	if c.Reshard < ReshardAuto || c.Reshard > ReshardAfterBackward {
		return c, fmt.Errorf("fsdp: Config.Reshard is %d", c.Reshard)
	}
	if c.DivideFactor < 0 {
		return c, fmt.Errorf("fsdp: Config.DivideFactor is %v, must not be negative", c.DivideFactor)
	}
	if c.DivideFactor == 0 {
		c.DivideFactor = float64(size)
	}
	if c.Prefetch == 0 {
		c.Prefetch = 1
	}
	if c.DirectBytes == 0 {
		c.DirectBytes = 8 << 20
	}
	return c, nil
}

// Kind is a module that knows the name under which wrap policies of other frameworks speak of it, such as
// "LlamaDecoderLayer".
type Kind interface{ ModuleKind() string }

// ByKind makes every module of one of the kinds a unit (TRANSFORMER_BASED_WRAP).
func ByKind(kinds ...string) Policy {
	return func(_ string, module any) bool {
		k, ok := module.(Kind)
		return ok && slices.Contains(kinds, k.ModuleKind())
	}
}

// ByType makes every module of type T a unit.
func ByType[T any]() Policy {
	return func(_ string, module any) bool {
		_, ok := module.(T)
		return ok
	}
}
