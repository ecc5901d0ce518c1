package torch

// Elementwise arithmetic, comparisons and activations. Shapes broadcast as in PyTorch.

var (
	opAdd       = newOp("aten::add", "Tensor", "self,other,alpha")
	opAddS      = newOp("aten::add", "Scalar", "self,other")
	opSub       = newOp("aten::sub", "Tensor", "self,other")
	opMul       = newOp("aten::mul", "Tensor", "self,other")
	opMulS      = newOp("aten::mul", "Scalar", "self,other")
	opDiv       = newOp("aten::div", "Tensor", "self,other")
	opDivS      = newOp("aten::div", "Scalar", "self,other")
	opPowS      = newOp("aten::pow", "Tensor_Scalar", "self,exponent")
	opNeg       = newOp("aten::neg", "", "self")
	opAbs       = newOp("aten::abs", "", "self")
	opExp       = newOp("aten::exp", "", "self")
	opLog       = newOp("aten::log", "", "self")
	opSqrt      = newOp("aten::sqrt", "", "self")
	opRsqrt     = newOp("aten::rsqrt", "", "self")
	opSin       = newOp("aten::sin", "", "self")
	opCos       = newOp("aten::cos", "", "self")
	opTanh      = newOp("aten::tanh", "", "self")
	opSigmoid   = newOp("aten::sigmoid", "", "self")
	opRelu      = newOp("aten::relu", "", "self")
	opSilu      = newOp("aten::silu", "", "self")
	opGelu      = newOp("aten::gelu", "", "self,approximate")
	opClamp     = newOp("aten::clamp", "", "self,min,max")
	opEqS       = newOp("aten::eq", "Scalar", "self,other")
	opEq        = newOp("aten::eq", "Tensor", "self,other")
	opNeS       = newOp("aten::ne", "Scalar", "self,other")
	opGtS       = newOp("aten::gt", "Scalar", "self,other")
	opLtS       = newOp("aten::lt", "Scalar", "self,other")
	opWhere     = newOp("aten::where", "self", "condition,self,other")
	opIsfinite  = newOp("aten::isfinite", "", "self")
	opAdd_      = newOp("aten::add_", "Tensor", "self,other,alpha")
	opAddS_     = newOp("aten::add_", "Scalar", "self,other")
	opMul_      = newOp("aten::mul_", "Tensor", "self,other")
	opMulS_     = newOp("aten::mul_", "Scalar", "self,other")
	opDivS_     = newOp("aten::div_", "Scalar", "self,other")
	opZero_     = newOp("aten::zero_", "", "self")
	opFill_     = newOp("aten::fill_", "Scalar", "self,value")
	opCopy_     = newOp("aten::copy_", "", "self,src,non_blocking")
	opNormal_   = newOp("aten::normal_", "", "self,mean,std,generator")
	opUniform_  = newOp("aten::uniform_", "", "self,from,to,generator")
	opBern_     = newOp("aten::bernoulli_", "float", "self,p,generator")
	opMaskFill  = newOp("aten::masked_fill", "Scalar", "self,mask,value")
	opMaxElt    = newOp("aten::maximum", "", "self,other")
	opForNorm   = newOp("aten::_foreach_norm", "Scalar", "self,ord")
	opForMul_   = newOp("aten::_foreach_mul_", "Scalar", "self,scalar")
	opForMulT_  = newOp("aten::_foreach_mul_", "Tensor", "self,other")
	opLogicAnd  = newOp("aten::logical_and", "", "self,other")
	opLogicNot  = newOp("aten::logical_not", "", "self")
	opTril      = newOp("aten::tril", "", "self,diagonal")
	opAllclose  = newOp("aten::allclose", "", "self,other,rtol,atol,equal_nan")
	opEqualBits = newOp("aten::equal", "", "self,other")
)

// Add is t + o.
func (t *Tensor) Add(o *Tensor) *Tensor { return opAdd.Begin().T(t).T(o).Int(1).Tensor() }

// AddScaled is t + alpha·o.
func (t *Tensor) AddScaled(o *Tensor, alpha float64) *Tensor {
	return opAdd.Begin().T(t).T(o).Float(alpha).Tensor()
}

// AddScalar is t + v.
func (t *Tensor) AddScalar(v float64) *Tensor { return opAddS.Begin().T(t).Float(v).Tensor() }

// Sub is t − o.
func (t *Tensor) Sub(o *Tensor) *Tensor { return opSub.Begin().T(t).T(o).Tensor() }

// Mul is t · o, element by element.
func (t *Tensor) Mul(o *Tensor) *Tensor { return opMul.Begin().T(t).T(o).Tensor() }

// MulScalar is t · v.
func (t *Tensor) MulScalar(v float64) *Tensor { return opMulS.Begin().T(t).Float(v).Tensor() }

// Div is t / o.
func (t *Tensor) Div(o *Tensor) *Tensor { return opDiv.Begin().T(t).T(o).Tensor() }

// DivScalar is t / v.
func (t *Tensor) DivScalar(v float64) *Tensor { return opDivS.Begin().T(t).Float(v).Tensor() }

// Pow is t to the power v.
func (t *Tensor) Pow(v float64) *Tensor { return opPowS.Begin().T(t).Float(v).Tensor() }

// Neg is −t.
func (t *Tensor) Neg() *Tensor { return opNeg.Begin().T(t).Tensor() }

// Abs is |t|.
func (t *Tensor) Abs() *Tensor { return opAbs.Begin().T(t).Tensor() }

// Exp is e to the power t.
func (t *Tensor) Exp() *Tensor { return opExp.Begin().T(t).Tensor() }

// Log is the natural logarithm.
func (t *Tensor) Log() *Tensor { return opLog.Begin().T(t).Tensor() }

// Sqrt is the square root.
func (t *Tensor) Sqrt() *Tensor { return opSqrt.Begin().T(t).Tensor() }

// Rsqrt is 1 / the square root.
func (t *Tensor) Rsqrt() *Tensor { return opRsqrt.Begin().T(t).Tensor() }

// Sin is the sine.
func (t *Tensor) Sin() *Tensor { return opSin.Begin().T(t).Tensor() }

// Cos is the cosine.
func (t *Tensor) Cos() *Tensor { return opCos.Begin().T(t).Tensor() }

// Tanh is the hyperbolic tangent.
func (t *Tensor) Tanh() *Tensor { return opTanh.Begin().T(t).Tensor() }

// Sigmoid is 1 / (1 + e^−t).
func (t *Tensor) Sigmoid() *Tensor { return opSigmoid.Begin().T(t).Tensor() }

// ReLU is max(t, 0).
func (t *Tensor) ReLU() *Tensor { return opRelu.Begin().T(t).Tensor() }

// SiLU is t · sigmoid(t).
func (t *Tensor) SiLU() *Tensor { return opSilu.Begin().T(t).Tensor() }

// GELU is the Gaussian error linear unit; approximate is "none" or "tanh".
func (t *Tensor) GELU(approximate string) *Tensor { return opGelu.one(t, approximate) }

// Clamp limits the elements to [lo, hi].
func (t *Tensor) Clamp(lo, hi float64) *Tensor {
	return opClamp.Begin().T(t).Float(lo).Float(hi).Tensor()
}

// Maximum is the elementwise maximum.
func (t *Tensor) Maximum(o *Tensor) *Tensor { return opMaxElt.Begin().T(t).T(o).Tensor() }

// Eq compares element by element and gives bools.
func (t *Tensor) Eq(o *Tensor) *Tensor { return opEq.Begin().T(t).T(o).Tensor() }

// EqScalar compares with v.
func (t *Tensor) EqScalar(v float64) *Tensor { return opEqS.Begin().T(t).Float(v).Tensor() }

// NeScalar compares with v.
func (t *Tensor) NeScalar(v float64) *Tensor { return opNeS.Begin().T(t).Float(v).Tensor() }

// GtScalar compares with v.
func (t *Tensor) GtScalar(v float64) *Tensor { return opGtS.Begin().T(t).Float(v).Tensor() }

// LtScalar compares with v.
func (t *Tensor) LtScalar(v float64) *Tensor { return opLtS.Begin().T(t).Float(v).Tensor() }

// LogicalAnd is t && o.
func (t *Tensor) LogicalAnd(o *Tensor) *Tensor { return opLogicAnd.Begin().T(t).T(o).Tensor() }

// LogicalNot is !t.
func (t *Tensor) LogicalNot() *Tensor { return opLogicNot.Begin().T(t).Tensor() }

// Where picks from a where condition (bool) is true, else from b. The three shapes are broadcast.
func Where(condition, a, b *Tensor) *Tensor { return opWhere.one(condition, a, b) }

// IsFinite is false at infinities and NaNs.
func (t *Tensor) IsFinite() *Tensor { return opIsfinite.Begin().T(t).Tensor() }

// MaskedFill puts value where mask (bool) is true.
func (t *Tensor) MaskedFill(mask *Tensor, value float64) *Tensor {
	return opMaskFill.one(t, mask, value)
}

// Tril keeps the lower triangle of the last two dimensions.
func (t *Tensor) Tril(diagonal int) *Tensor { return opTril.one(t, diagonal) }

// AllClose tells whether |t − o| ≤ atol + rtol·|o| everywhere.
func (t *Tensor) AllClose(o *Tensor, rtol, atol float64) bool {
	return opAllclose.call(t, o, rtol, atol, false)[0].(bool)
}

// Equal tells whether shapes and values are the same.
func (t *Tensor) Equal(o *Tensor) bool { return opEqualBits.call(t, o)[0].(bool) }

// AddInPlace adds alpha·o to t.
func (t *Tensor) AddInPlace(o *Tensor, alpha float64) *Tensor {
	opAdd_.Begin().T(t).T(o).Float(alpha).Drop()
	return t
}

// AddScalarInPlace adds v to t.
func (t *Tensor) AddScalarInPlace(v float64) *Tensor { opAddS_.Begin().T(t).Float(v).Drop(); return t }

// MulInPlace multiplies t by o.
func (t *Tensor) MulInPlace(o *Tensor) *Tensor { opMul_.Begin().T(t).T(o).Drop(); return t }

// MulScalarInPlace multiplies t by v.
func (t *Tensor) MulScalarInPlace(v float64) *Tensor { opMulS_.Begin().T(t).Float(v).Drop(); return t }

// DivScalarInPlace divides t by v.
func (t *Tensor) DivScalarInPlace(v float64) *Tensor { opDivS_.Begin().T(t).Float(v).Drop(); return t }

// Zero sets every element to 0.
func (t *Tensor) Zero() *Tensor { opZero_.Begin().T(t).Drop(); return t }

// Fill sets every element to v.
func (t *Tensor) Fill(v float64) *Tensor { opFill_.Begin().T(t).Float(v).Drop(); return t }

// Copy writes src, converted and broadcast, into t.
func (t *Tensor) Copy(src *Tensor) *Tensor { opCopy_.inPlace(t, src, false); return t }

// NormalInPlace fills t from a normal distribution; g nil is the process-wide generator.
func (t *Tensor) NormalInPlace(mean, std float64, g *Generator) *Tensor {
	opNormal_.inPlace(t, mean, std, g)
	return t
}

// UniformInPlace fills t uniformly from [lo, hi); g nil is the process-wide generator.
func (t *Tensor) UniformInPlace(lo, hi float64, g *Generator) *Tensor {
	opUniform_.inPlace(t, lo, hi, g)
	return t
}

// BernoulliInPlace fills t with ones of probability p, else zeros; g nil is the process-wide generator.
func (t *Tensor) BernoulliInPlace(p float64, g *Generator) *Tensor {
	opBern_.inPlace(t, p, g)
	return t
}

// ForeachNorm gives the ord-norm of each tensor.
func ForeachNorm(tensors []*Tensor, ord float64) []*Tensor {
	return opForNorm.call(tensors, ord)[0].([]*Tensor)
}

// ForeachMulInPlace multiplies each tensor by v.
func ForeachMulInPlace(tensors []*Tensor, v float64) { opForMul_.inPlace(tensors, v) }

// ForeachMulTensorInPlace multiplies each tensor by the one-element tensor v.
func ForeachMulTensorInPlace(tensors []*Tensor, v *Tensor) { opForMulT_.inPlace(tensors, v) }
