package fsdp

import (
	"context"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/dist"
)

// Strategy is what is sharded, over which ranks.
type Strategy int

// The strategies of FSDP1, in the order of their numbers there, which begin at 1.
const (
	// FullShard shards parameters, gradients and optimiser state (ZeRO-3).
	FullShard Strategy = iota
	// ShardGradOp keeps parameters whole from forward to backward (ZeRO-2).
	ShardGradOp
	// NoShard keeps everything whole on every rank and reduces gradients, as DistributedDataParallel.
	NoShard
	// HybridShard is FullShard inside groups of ranks and replicates between them. It needs a mesh of two dimensions.
	HybridShard
	// HybridShardZeRO2 is HybridShard with ShardGradOp inside the groups.
	HybridShardZeRO2
)

var strategyNames = []string{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}

// ParseStrategy reads a strategy as Accelerate and PyTorch write it: a name of FSDP1 (HYBRID_SHARD_ZERO2 with or without
// the underscore before it) or its number from 1 to 5. Case does not matter.
func ParseStrategy(s string) (Strategy, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(s)), "SHARDINGSTRATEGY."), "_")
	for i, n := range strategyNames {
		if name == n || name == fmt.Sprint(i+1) {
			return Strategy(i), nil
		}
	}
	return 0, fmt.Errorf("fsdp: sharding strategy %q: want one of %s, or 1 to %d", s, strings.Join(strategyNames, ", "), len(strategyNames))
}

// String is FSDP1's name.
func (s Strategy) String() string {
	switch {
	case s < FullShard || s > HybridShardZeRO2:
		return fmt.Sprintf("Strategy(%d)", int(s))
	case s == HybridShardZeRO2:
		return "_" + strategyNames[s]
	}
	return strategyNames[s]
}

// Reshard says when a unit gives its gathered parameters back.
type Reshard int

// When to reshard. The zero value is the default of fully_shard.
const (
	// ReshardAuto reshards every unit after forward but the root, which backward needs first.
	ReshardAuto Reshard = iota
	// ReshardAfterForward reshards the root too (reshard_after_forward=True).
	ReshardAfterForward
	// ReshardAfterBackward keeps parameters from forward to backward (reshard_after_forward=False).
	ReshardAfterBackward
)

// groups are the ranks that a model is spread over.
type groups struct {
	world     dist.Group
	shard     dist.Group // the ranks that hold one copy of the model between them
	replicate dist.Group // the ranks that hold the same shard; nil where there is one
	reshard   dist.Group // neighbours in shard among whom backward gathers; nil where that is shard
}

// replicas is the number of copies of the model.
func (g *groups) replicas() int {
	if g.replicate == nil {
		return 1
	}
	return g.replicate.Size()
}

// place lays a strategy out over the ranks of a group, or of a mesh where it is not nil.
func place(g dist.Group, mesh *dist.Mesh, c Config) (groups, error) {
	l := groups{world: g, shard: g}
	if mesh != nil {
		l.world = mesh.World()
		names := mesh.Names()
		switch len(names) {
		case 1:
			l.shard = l.world
		case 2:
			var err error
			if l.replicate, err = mesh.Sub(names[0]); err != nil {
				return l, err
			}
			if l.shard, err = mesh.Sub(names[1]); err != nil {
				return l, err
			}
		default:
			return l, fmt.Errorf("fsdp: the mesh has %d dimensions %q: one to shard over, or two to replicate and to shard over", len(names), names)
		}
	}
	switch c.Strategy {
	case NoShard:
		l.shard, l.replicate = dist.NewSingle(), l.world
	case HybridShard, HybridShardZeRO2:
		if l.replicate == nil {
			return l, fmt.Errorf("fsdp: %v needs a mesh of two dimensions, to replicate and to shard over: use WrapMesh", c.Strategy)
		}
	}
	if l.replicate != nil && l.replicate.Size() == 1 {
		l.replicate = nil
	}
	return l, nil
}

// neighbours makes the group of ReshardSize. It returns a changed Config where the size means something simpler.
func (g *groups) neighbours(ctx context.Context, c Config) (Config, error) {
	size := g.shard.Size()
	switch k := c.ReshardSize; {
	case k == 0 || size == 1:
		c.ReshardSize = 0
	case k == size:
		c.ReshardSize, c.Reshard = 0, ReshardAuto
	case k == 1:
		c.ReshardSize, c.Reshard = 0, ReshardAfterBackward
	case size%k != 0:
		return c, fmt.Errorf("fsdp: Config.ReshardSize %d does not divide the %d ranks that the model is sharded over", k, size)
	default:
		s, ok := g.shard.(dist.Splitter)
		if !ok {
			return c, fmt.Errorf("fsdp: Config.ReshardSize: a %T cannot be split", g.shard)
		}
		ranks := make([]int, k)
		for i := range ranks {
			ranks[i] = g.shard.Rank()/k*k + i
		}
		var err error
		if g.reshard, err = s.Split(ctx, "reshard", ranks); err != nil {
			return c, fmt.Errorf("fsdp: rank %d: connect the %d ranks of Config.ReshardSize: %w", g.world.Rank(), k, err)
		}
	}
	return c, nil
}
