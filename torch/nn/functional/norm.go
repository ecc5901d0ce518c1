package functional

import "github.com/gofsdp/gofsdp/torch"

// BatchNormOptions are the settings of BatchNorm.
type BatchNormOptions struct {
	Training bool    // normalise by the batch's own statistics, and update the running ones
	Momentum float64 // weight of the batch in the running statistics
	Eps      float64
}

// BatchNorm normalises each channel (dimension 1) of x over the others. runningMean and runningVar (channels) are updated
// in place while training, and used otherwise; they may be nil while training. weight and bias (channels) may be nil.
func BatchNorm(x, runningMean, runningVar, weight, bias *torch.Tensor, o BatchNormOptions) *torch.Tensor {
	return torch.CallOne("aten::batch_norm", x, optional(weight), optional(bias), optional(runningMean),
		optional(runningVar), o.Training, o.Momentum, o.Eps, true)
}

// LayerNorm normalises over the last len(shape) dimensions; weight and bias have that shape, or are nil.
func LayerNorm(x *torch.Tensor, shape []int64, weight, bias *torch.Tensor, eps float64) *torch.Tensor {
	return x.LayerNorm(shape, weight, bias, eps)
}

// GroupNorm normalises groups of channels (dimension 1) of each sample; weight and bias (channels) may be nil.
func GroupNorm(x *torch.Tensor, groups int64, weight, bias *torch.Tensor, eps float64) *torch.Tensor {
	return torch.CallOne("aten::group_norm", x, groups, optional(weight), optional(bias), eps, true)
}
