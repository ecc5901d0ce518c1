package torch

import (
	"runtime"

	"github.com/gofsdp/gofsdp/internal/capi"
)

// Generator is a source of random numbers of one device. It may be used from several goroutines; which of them draws first
// then decides the numbers.
type Generator struct{ h capi.Handle }

func wrapGenerator(h capi.Handle) *Generator {
	g := &Generator{h: h}
	runtime.AddCleanup(g, capi.FreeGenerator, h)
	return g
}

// NewGenerator makes a generator of the CPU.
func NewGenerator(seed int64) *Generator {
	check("NewGenerator", capi.Load())
	h, err := capi.NewGenerator(seed)
	check("NewGenerator", err)
	return wrapGenerator(h)
}

// NewGeneratorOn makes a generator of a device: tensors draw from one of their own device.
func NewGeneratorOn(d Device, seed int64) *Generator {
	if d.Type == CPUType {
		return NewGenerator(seed)
	}
	check("NewGeneratorOn", capi.Load())
	h, err := capi.NewGeneratorOn(int(d.Type), d.Index, seed)
	check("NewGeneratorOn", err)
	return wrapGenerator(h)
}

// DefaultGenerator is the process-wide generator of a device, which operators use that are given none. Its state is
// PyTorch's torch.get_rng_state and torch.cuda.get_rng_state.
func DefaultGenerator(d Device) *Generator {
	check("DefaultGenerator", capi.Load())
	h, err := capi.DefaultGenerator(int(d.Type), d.Index)
	check("DefaultGenerator", err)
	return wrapGenerator(h)
}

func (g *Generator) handle(op string) capi.Handle {
	if g == nil || g.h == 0 {
		fail(op, ErrArgument, "the generator is nil: make one with NewGenerator")
	}
	return g.h
}

// Seed restarts the generator.
func (g *Generator) Seed(seed int64) {
	check("Generator.Seed", capi.SeedGenerator(g.handle("Generator.Seed"), seed))
	runtime.KeepAlive(g)
}

// InitialSeed is the seed with which the generator started.
func (g *Generator) InitialSeed() int64 {
	seed, err := capi.GeneratorSeed(g.handle("Generator.InitialSeed"))
	check("Generator.InitialSeed", err)
	runtime.KeepAlive(g)
	return seed
}

// State is a copy of the generator's state, a uint8 tensor in no scope.
func (g *Generator) State() *Tensor {
	h, err := capi.GeneratorState(g.handle("Generator.State"))
	check("Generator.State", err)
	runtime.KeepAlive(g)
	return wrapHandle(h, nil)
}

// SetState restores what State gave.
func (g *Generator) SetState(state *Tensor) {
	gh := g.handle("Generator.SetState")
	h := state.use("Generator.SetState")
	defer state.done()
	check("Generator.SetState", capi.SetGeneratorState(gh, h))
	runtime.KeepAlive(g)
}

// ManualSeed seeds the process-wide generators of all devices.
func ManualSeed(seed int64) {
	check("ManualSeed", capi.Load())
	check("ManualSeed", capi.ManualSeed(seed))
}
