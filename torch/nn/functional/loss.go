package functional

import "github.com/gofsdp/gofsdp/torch"

// ClassOptions are the settings of CrossEntropy and NLLLoss. The zero value is PyTorch's default.
type ClassOptions struct {
	Weight         *torch.Tensor // per class, or nil
	IgnoreIndex    *int64        // targets that do not count; nil means -100
	LabelSmoothing float64       // of CrossEntropy only, in [0, 1]
}

func (o ClassOptions) ignored() int64 {
	if o.IgnoreIndex == nil {
		return -100
	}
	return *o.IgnoreIndex
}

// CrossEntropy is the loss of logits (batch, classes, …) against int64 classes (batch, …), or against probabilities of
// the logits' shape.
func CrossEntropy(logits, target *torch.Tensor, r torch.Reduction, o ClassOptions) *torch.Tensor {
	return torch.CallOne("aten::cross_entropy_loss", logits, target, optional(o.Weight), int(r), o.ignored(), o.LabelSmoothing)
}

// NLLLoss is the loss of log-probabilities (batch, classes, …) against int64 classes (batch, …).
func NLLLoss(logProbs, target *torch.Tensor, r torch.Reduction, o ClassOptions) *torch.Tensor {
	return torch.CallOne("aten::nll_loss_nd", logProbs, target, optional(o.Weight), int(r), o.ignored())
}

// MSELoss is (x − target)².
func MSELoss(x, target *torch.Tensor, r torch.Reduction) *torch.Tensor { return x.MSELoss(target, r) }

// L1Loss is |x − target|.
func L1Loss(x, target *torch.Tensor, r torch.Reduction) *torch.Tensor {
	return torch.CallOne("aten::l1_loss", x, target, int(r))
}

// SmoothL1Loss is quadratic below beta and linear above: ½d²/beta, else d − ½beta, with d = |x − target|. PyTorch's
// default beta is 1.
func SmoothL1Loss(x, target *torch.Tensor, r torch.Reduction, beta float64) *torch.Tensor {
	return torch.CallOne("aten::smooth_l1_loss", x, target, int(r), beta)
}

// HuberLoss is delta times SmoothL1Loss with beta = delta.
func HuberLoss(x, target *torch.Tensor, r torch.Reduction, delta float64) *torch.Tensor {
	return torch.CallOne("aten::huber_loss", x, target, int(r), delta)
}

// BinaryCrossEntropy is the loss of probabilities against targets in [0, 1]; weight may be nil.
func BinaryCrossEntropy(x, target, weight *torch.Tensor, r torch.Reduction) *torch.Tensor {
	return torch.CallOne("aten::binary_cross_entropy", x, target, optional(weight), int(r))
}

// BinaryCrossEntropyWithLogits is BinaryCrossEntropy of sigmoid(x), computed without overflow. weight and posWeight (of
// the positive class) may be nil.
func BinaryCrossEntropyWithLogits(x, target, weight, posWeight *torch.Tensor, r torch.Reduction) *torch.Tensor {
	return torch.CallOne("aten::binary_cross_entropy_with_logits", x, target, optional(weight), optional(posWeight), int(r))
}

// KLDivLoss is the divergence of log-probabilities x from target: target · (log target − x). With logTarget the target is
// given as logarithms. torch.ReduceMean divides by the number of elements; KLDivBatchMean is the mathematical mean.
func KLDivLoss(x, target *torch.Tensor, r torch.Reduction, logTarget bool) *torch.Tensor {
	return torch.CallOne("aten::kl_div", x, target, int(r), logTarget)
}

// KLDivBatchMean is the sum of KLDivLoss divided by the batch size, PyTorch's reduction "batchmean".
func KLDivBatchMean(x, target *torch.Tensor, logTarget bool) *torch.Tensor {
	return KLDivLoss(x, target, torch.ReduceSum, logTarget).DivScalar(float64(x.Size(0)))
}
