package functional

import "github.com/gofsdp/gofsdp/torch"

// ConvOptions are the settings of a convolution. Lists hold one number for every dimension, or one number for all; empty
// is the default.
type ConvOptions struct {
	Stride        []int64 // default 1
	Padding       []int64 // default 0
	OutputPadding []int64 // of transposed convolutions only; default 0
	Dilation      []int64 // default 1
	Groups        int64   // default 1
}

func conv(op string, dims int, x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return torch.CallOne(op, x, weight, optional(bias), sizes(o.Stride, dims, 1), sizes(o.Padding, dims, 0),
		sizes(o.Dilation, dims, 1), orOne(o.Groups))
}

func convTranspose(op string, dims int, x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return torch.CallOne(op, x, weight, optional(bias), sizes(o.Stride, dims, 1), sizes(o.Padding, dims, 0),
		sizes(o.OutputPadding, dims, 0), orOne(o.Groups), sizes(o.Dilation, dims, 1))
}

// Conv1d convolves x (batch, in, length) with weight (out, in/groups, k); bias is (out) or nil.
func Conv1d(x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return conv("aten::conv1d", 1, x, weight, bias, o)
}

// Conv2d convolves x (batch, in, height, width) with weight (out, in/groups, kh, kw); bias is (out) or nil.
func Conv2d(x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return conv("aten::conv2d", 2, x, weight, bias, o)
}

// Conv3d convolves x (batch, in, depth, height, width) with weight (out, in/groups, kd, kh, kw); bias is (out) or nil.
func Conv3d(x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return conv("aten::conv3d", 3, x, weight, bias, o)
}

// ConvTranspose1d is the transpose of Conv1d; weight is (in, out/groups, k).
func ConvTranspose1d(x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return convTranspose("aten::conv_transpose1d", 1, x, weight, bias, o)
}

// ConvTranspose2d is the transpose of Conv2d; weight is (in, out/groups, kh, kw).
func ConvTranspose2d(x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return convTranspose("aten::conv_transpose2d.input", 2, x, weight, bias, o)
}

// ConvTranspose3d is the transpose of Conv3d; weight is (in, out/groups, kd, kh, kw).
func ConvTranspose3d(x, weight, bias *torch.Tensor, o ConvOptions) *torch.Tensor {
	return convTranspose("aten::conv_transpose3d.input", 3, x, weight, bias, o)
}
