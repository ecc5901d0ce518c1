package gotorch

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
)

// leaf marks a new tensor for autograd where it is asked for.
func leaf(t *torch.Tensor, requiresGrad bool) Tensor {
	if requiresGrad {
		t.SetRequiresGrad(true)
	}
	return Wrap(t)
}

// float32Type is the type of tensors made without data.
var float32Type = torch.Float32

// RandN draws from the normal distribution.
func RandN(shape []int64, requiresGrad bool) Tensor {
	return leaf(torch.Randn(nil, torch.Float32, shape...), requiresGrad)
}

// Rand draws uniformly from [0, 1).
func Rand(shape []int64, requireGrad bool) Tensor {
	return leaf(torch.Rand(nil, torch.Float32, shape...), requireGrad)
}

// Empty makes a tensor whose elements are whatever was in memory.
func Empty(shape []int64, requiresGrad bool) Tensor {
	return leaf(torch.Empty(torch.Float32, shape...), requiresGrad)
}

// Ones makes a tensor of ones.
func Ones(shape []int64, requiresGrad bool) Tensor {
	return leaf(torch.Ones(torch.Float32, shape...), requiresGrad)
}

// Eye makes an n × m matrix with ones on the diagonal and zeros elsewhere.
func Eye(n, m int64, requiresGrad bool) Tensor {
	return leaf(aten.EyeM(n, m, aten.EyeOptions{DType: &float32Type}), requiresGrad)
}

// Full makes a tensor whose elements are all value.
func Full(shape []int64, value float32, requiresGrad bool) Tensor {
	return leaf(torch.Full(torch.Float32, float64(value), shape...), requiresGrad)
}

// Arange makes the 1-D tensor begin, begin+step, … below end.
func Arange(begin, end, step float32, requiresGrad bool) Tensor {
	o := aten.ArangeStartStepOptions{Step: step, DType: &float32Type}
	return leaf(aten.ArangeStartStep(begin, end, o), requiresGrad)
}

// Linspace makes a 1-D tensor of steps values, evenly spaced from begin to end.
func Linspace(begin, end float32, steps int64, requiresGrad bool) Tensor {
	return leaf(aten.Linspace(begin, end, steps, aten.LinspaceOptions{DType: &float32Type}), requiresGrad)
}

// Logspace makes a 1-D tensor of steps powers of base, with exponents evenly spaced from begin to end.
func Logspace(begin, end float32, steps int64, base float64, requiresGrad bool) Tensor {
	o := aten.LogspaceOptions{Base: &base, DType: &float32Type}
	return leaf(aten.Logspace(begin, end, steps, o), requiresGrad)
}

// FromBlob copies elements from memory: the sizes' product times the size of one element of dtype, row by row.
func FromBlob(data unsafe.Pointer, dtype int8, sizes []int64) Tensor {
	n := torch.DType(dtype).Size()
	if n == 0 {
		fail("FromBlob", "tensors of type %v cannot be made from memory", torch.DType(dtype))
	}
	for _, d := range sizes {
		if d < 0 {
			fail("FromBlob", "shape %v", sizes)
		}
		n *= d
	}
	if n > 0 && data == nil {
		fail("FromBlob", "no data for shape %v", sizes)
	}
	return Wrap(torch.FromBytes(torch.DType(dtype), unsafe.Slice((*byte)(data), n), sizes...))
}
