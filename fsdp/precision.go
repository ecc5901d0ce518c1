package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
)

// MixedPrecision are the types that a unit computes and communicates in. What is sharded, and what the optimiser updates,
// keeps its own type. The zero value changes nothing; a zero DType is "not given".
//
// Parameters that are not floating-point numbers, and those marked nn.Param.Verbatim (packed weights and their scales),
// are never converted.
type MixedPrecision struct {
	// ParamDType is the type of gathered parameters, of the computation and of all-gathers (param_dtype).
	ParamDType torch.DType
	// ReduceDType is the type in which gradients are summed, over micro-batches without synchronisation and over ranks
	// (reduce_dtype). Not given, it is that of the computation.
	ReduceDType torch.DType
	// OutputDType is the type of the unit's floating-point outputs (output_dtype).
	OutputDType torch.DType
	// KeepInputs leaves floating-point inputs as they are instead of converting them to ParamDType
	// (cast_forward_inputs=False).
	KeepInputs bool
}

// notGiven is the zero DType.
const notGiven = torch.DType(0)

func (p MixedPrecision) check() error {
	for _, f := range []struct {
		name  string
		dtype torch.DType
	}{{"ParamDType", p.ParamDType}, {"ReduceDType", p.ReduceDType}, {"OutputDType", p.OutputDType}} {
		if f.dtype != notGiven && !f.dtype.IsFloat() {
			return fmt.Errorf("fsdp: MixedPrecision.%s is %v: it must be a floating-point type", f.name, f.dtype)
		}
	}
	return nil
}

// compute is the type in which a unit's gathered parameter lives.
func (p MixedPrecision) compute(dtype torch.DType, verbatim bool) torch.DType {
	if p.ParamDType == notGiven || verbatim || !dtype.IsFloat() {
		return dtype
	}
	return p.ParamDType
}

// reduce is the type in which gradients of a parameter that computes in dtype are summed.
func (p MixedPrecision) reduce(dtype torch.DType) torch.DType {
	if p.ReduceDType == notGiven {
		return dtype
	}
	return p.ReduceDType
}

// castInputs converts a unit's inputs; gradients flow back in the inputs' own types.
func (p MixedPrecision) castInputs(in []*torch.Tensor) []*torch.Tensor {
	if p.KeepInputs {
		return in
	}
	return castFloats(in, p.ParamDType)
}

func (p MixedPrecision) castOutputs(out []*torch.Tensor) []*torch.Tensor {
	return castFloats(out, p.OutputDType)
}

func castFloats(list []*torch.Tensor, dtype torch.DType) []*torch.Tensor {
	if dtype == notGiven {
		return list
	}
	cast := make([]*torch.Tensor, len(list))
	for i, t := range list {
		if cast[i] = t; t.DType().IsFloat() && t.DType() != dtype {
			cast[i] = t.To(dtype)
		}
	}
	return cast
}
