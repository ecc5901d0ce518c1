package torch

// The fused optimiser steps. Lists are parallel: element i belongs to parameter i. They change tensors in place, so call
// them inside NoGrad.

var (
	opFusedAdam  = newOp("aten::_fused_adam_", "", fusedAdamArgs)
	opFusedAdamW = newOp("aten::_fused_adamw_", "", fusedAdamArgs)
	opFusedSGD   = newOp("aten::_fused_sgd_", "", "self,grads,momentum_buffer_list,weight_decay,momentum,lr,dampening,nesterov,maximize,is_first_step")
	opForAddS_   = newOp("aten::_foreach_add_", "Scalar", "self,scalar")
	opZerosLike  = newOp("aten::zeros_like", "", "self")
)

const fusedAdamArgs = "self,grads,exp_avgs,exp_avg_sqs,max_exp_avg_sqs,state_steps,lr,beta1,beta2,weight_decay,eps,amsgrad,maximize"

// AdamLists are the tensors of FusedAdam. MaxExpAvgSqs is empty without AMSGrad; Steps are float32 scalars that already
// count the step that is being made.
type AdamLists struct {
	Params, Grads, ExpAvgs, ExpAvgSqs, MaxExpAvgSqs, Steps []*Tensor
}

// AdamScalars are the settings of FusedAdam.
type AdamScalars struct {
	LR, Beta1, Beta2, WeightDecay, Eps float64
	AMSGrad, Maximize                  bool
	Decoupled                          bool // AdamW: the decay multiplies the parameter instead of joining the gradient
}

// FusedAdam makes one Adam or AdamW step.
func FusedAdam(l AdamLists, s AdamScalars) {
	op := opFusedAdam
	if s.Decoupled {
		op = opFusedAdamW
	}
	op.inPlace(l.Params, l.Grads, l.ExpAvgs, l.ExpAvgSqs, l.MaxExpAvgSqs, l.Steps, s.LR, s.Beta1, s.Beta2, s.WeightDecay,
		s.Eps, s.AMSGrad, s.Maximize)
}

// SGDScalars are the settings of FusedSGD.
type SGDScalars struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov, Maximize                   bool
	FirstStep                            bool // the momentum buffers hold nothing yet
}

// FusedSGD makes one step of stochastic gradient descent; momentum is empty where Momentum is 0.
func FusedSGD(params, grads, momentum []*Tensor, s SGDScalars) {
	opFusedSGD.inPlace(params, grads, momentum, s.WeightDecay, s.Momentum, s.LR, s.Dampening, s.Nesterov, s.Maximize,
		s.FirstStep)
}

// ForeachAddScalarInPlace adds v to each tensor.
func ForeachAddScalarInPlace(tensors []*Tensor, v float64) { opForAddS_.inPlace(tensors, v) }

// ZerosLike makes zeros of t's shape, type and device.
func (t *Tensor) ZerosLike() *Tensor { return opZerosLike.one(t) }
