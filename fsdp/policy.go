package fsdp

import (
	"reflect"
	"slices"

	"github.com/gofsdp/gofsdp/torch/nn"
)

// Candidate is a module that a Policy may make a unit. Modules are offered from the inside out.
type Candidate struct {
	Name   string // its path in the root
	Module any
	Params []nn.Named // its parameters that no unit inside it has taken; names within the module
}

// Numel is the number of elements of the parameters.
func (c Candidate) Numel() int64 {
	n := int64(0)
	for _, p := range c.Params {
		n += numel(p.Param.Shape())
	}
	return n
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// Policy chooses the modules that become units of their own.
type Policy func(c Candidate) bool

// Kind is a module that knows the name under which wrap policies of other frameworks speak of it, such as
// "LlamaDecoderLayer".
type Kind interface{ ModuleKind() string }

// ByKind makes every module of one of the kinds a unit (TRANSFORMER_BASED_WRAP).
func ByKind(kinds ...string) Policy {
	return func(c Candidate) bool {
		k, ok := c.Module.(Kind)
		return ok && slices.Contains(kinds, k.ModuleKind())
	}
}

// ByType makes every module of type T a unit.
func ByType[T any]() Policy {
	return func(c Candidate) bool {
		_, ok := c.Module.(T)
		return ok
	}
}

// BySize makes a layer a unit where it has at least min parameters (elements) outside of the units inside it
// (SIZE_BASED_WRAP).
func BySize(min int64) Policy {
	return func(c Candidate) bool {
		_, layer := c.Module.(hooked)
		return layer && len(c.Params) > 0 && c.Numel() >= min
	}
}

// ByAdapter is PEFT's fsdp_auto_wrap_policy: every layer whose parameters are all trainable, and that has no modules with
// parameters inside it, is a unit, and so is every module of one of the kinds. Units gather frozen and trainable
// parameters of any type together, so ByKind is as good and needs fewer collectives.
func ByAdapter(kinds ...string) Policy {
	byKind := ByKind(kinds...)
	return func(c Candidate) bool {
		if byKind(c) {
			return true
		}
		if _, layer := c.Module.(hooked); !layer || len(c.Params) == 0 {
			return false
		}
		for _, inner := range nn.Modules(c.Module)[1:] {
			if len(nn.NamedParams(inner.Module)) > 0 {
				return false
			}
		}
		return !slices.ContainsFunc(nn.NamedParams(c.Module), func(n nn.Named) bool { return !n.Param.Trainable() })
	}
}

// Any makes a module a unit where one of the policies does.
func Any(policies ...Policy) Policy {
	return func(c Candidate) bool {
		return slices.ContainsFunc(policies, func(p Policy) bool { return p != nil && p(c) })
	}
}

// typeName is the name of a module's type in messages.
func typeName(module any) string { return reflect.TypeOf(module).String() }
