package functional

import "github.com/gofsdp/gofsdp/torch"

// PoolOptions are the settings of pooling. Lists hold one number for every dimension, or one for all; empty is the default.
type PoolOptions struct {
	Stride          []int64 // default: the kernel's size
	Padding         []int64 // default 0
	Dilation        []int64 // of MaxPool only; default 1
	CeilMode        bool    // round the output's size up
	ExcludePadding  bool    // of AvgPool only: do not average over the padding
	DivisorOverride int64   // of AvgPool2d and AvgPool3d only: divide by this; 0 divides by the window's size
}

func maxPool(op string, dims int, x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	kernel = sizes(kernel, dims, 1)
	return torch.CallOne(op, x, kernel, stride(o, kernel, dims), sizes(o.Padding, dims, 0), sizes(o.Dilation, dims, 1), o.CeilMode)
}

func avgPool(op string, dims int, x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	kernel = sizes(kernel, dims, 1)
	args := []any{x, kernel, stride(o, kernel, dims), sizes(o.Padding, dims, 0), o.CeilMode, !o.ExcludePadding}
	if dims > 1 && o.DivisorOverride != 0 {
		args = append(args, o.DivisorOverride)
	}
	return torch.CallOne(op, args...)
}

func stride(o PoolOptions, kernel []int64, dims int) []int64 {
	if len(o.Stride) == 0 {
		return kernel
	}
	return sizes(o.Stride, dims, 1)
}

// MaxPool1d gives the largest element of each window of the last dimension.
func MaxPool1d(x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	return maxPool("aten::max_pool1d", 1, x, kernel, o)
}

// MaxPool2d gives the largest element of each window of the last two dimensions.
func MaxPool2d(x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	return maxPool("aten::max_pool2d", 2, x, kernel, o)
}

// MaxPool3d gives the largest element of each window of the last three dimensions.
func MaxPool3d(x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	return maxPool("aten::max_pool3d", 3, x, kernel, o)
}

// AvgPool1d averages over windows of the last dimension.
func AvgPool1d(x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	return avgPool("aten::avg_pool1d", 1, x, kernel, o)
}

// AvgPool2d averages over windows of the last two dimensions.
func AvgPool2d(x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	return avgPool("aten::avg_pool2d", 2, x, kernel, o)
}

// AvgPool3d averages over windows of the last three dimensions.
func AvgPool3d(x *torch.Tensor, kernel []int64, o PoolOptions) *torch.Tensor {
	return avgPool("aten::avg_pool3d", 3, x, kernel, o)
}

// AdaptiveAvgPool1d averages the last dimension down (or up) to the given length.
func AdaptiveAvgPool1d(x *torch.Tensor, length int64) *torch.Tensor {
	return torch.CallOne("aten::adaptive_avg_pool1d", x, []int64{length})
}

// AdaptiveAvgPool2d averages the last two dimensions down (or up) to the given size.
func AdaptiveAvgPool2d(x *torch.Tensor, height, width int64) *torch.Tensor {
	return torch.CallOne("aten::adaptive_avg_pool2d", x, []int64{height, width})
}

// AdaptiveAvgPool3d averages the last three dimensions down (or up) to the given size.
func AdaptiveAvgPool3d(x *torch.Tensor, depth, height, width int64) *torch.Tensor {
	return torch.CallOne("aten::adaptive_avg_pool3d", x, []int64{depth, height, width})
}
