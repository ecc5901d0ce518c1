package torch

// Views, copies, indexing, reductions, products.

var (
	opView       = newOp("aten::view", "", "self,size")
	opReshape    = newOp("aten::reshape", "", "self,shape")
	opTranspose  = newOp("aten::transpose", "int", "self,dim0,dim1")
	opT          = newOp("aten::t", "", "self")
	opPermute    = newOp("aten::permute", "", "self,dims")
	opUnsqueeze  = newOp("aten::unsqueeze", "", "self,dim")
	opSqueeze    = newOp("aten::squeeze", "dim", "self,dim")
	opExpand     = newOp("aten::expand", "", "self,size")
	opNarrow     = newOp("aten::narrow", "", "self,dim,start,length")
	opSelect     = newOp("aten::select", "int", "self,dim,index")
	opSplitSizes = newOp("aten::split_with_sizes", "", "self,split_sizes,dim")
	opChunk      = newOp("aten::chunk", "", "self,chunks,dim")
	opContiguous = newOp("aten::contiguous", "", "self")
	opClone      = newOp("aten::clone", "", "self")
	opDetach     = newOp("aten::detach", "", "self")
	opAlias      = newOp("aten::alias", "", "self")
	opToDtype    = newOp("aten::to", "dtype", "self,dtype,non_blocking,copy")
	opToDevice   = newOp("aten::to", "dtype_layout", "self,device,non_blocking")
	opPinMemory  = newOp("aten::pin_memory", "", "self")
	opIsPinned   = newOp("aten::is_pinned", "", "self")
	opViewDtype  = newOp("aten::view", "dtype", "self,dtype")
	opAsStrided  = newOp("aten::as_strided", "", "self,size,stride,storage_offset")
	opFlatten    = newOp("aten::flatten", "using_ints", "self,start_dim,end_dim")
	opRepeatInt  = newOp("aten::repeat_interleave", "self_int", "self,repeats,dim")

	opIndexSelect = newOp("aten::index_select", "", "self,dim,index")
	opGather      = newOp("aten::gather", "", "self,dim,index")
	opIndex       = newOp("aten::index", "Tensor", "self,indices")
	opNonzero     = newOp("aten::nonzero", "", "self")
	opTopK        = newOp("aten::topk", "", "self,k,dim,largest,sorted")
	opSort        = newOp("aten::sort", "", "self,dim,descending")
	opCumsum      = newOp("aten::cumsum", "", "self,dim")
	opMultinomial = newOp("aten::multinomial", "", "self,num_samples,replacement,generator")
	opArgmax      = newOp("aten::argmax", "", "self,dim,keepdim")

	opSumAll    = newOp("aten::sum", "", "self,dtype")
	opSumDim    = newOp("aten::sum", "dim_IntList", "self,dim,keepdim")
	opMeanAll   = newOp("aten::mean", "", "self")
	opMeanDim   = newOp("aten::mean", "dim", "self,dim,keepdim")
	opMaxAll    = newOp("aten::max", "", "self")
	opMinAll    = newOp("aten::min", "", "self")
	opAmax      = newOp("aten::amax", "", "self,dim,keepdim")
	opAnyAll    = newOp("aten::any", "", "self")
	opAllAll    = newOp("aten::all", "", "self")
	opNorm      = newOp("aten::linalg_vector_norm", "", "self,ord,dim,keepdim,dtype")
	opLogsumexp = newOp("aten::logsumexp", "", "self,dim,keepdim")

	opMatmul  = newOp("aten::matmul", "", "self,other")
	opMM      = newOp("aten::mm", "", "self,mat2")
	opBMM     = newOp("aten::bmm", "", "self,mat2")
	opAddmm   = newOp("aten::addmm", "", "self,mat1,mat2,beta,alpha")
	opLinear  = newOp("aten::linear", "", "input,weight,bias")
	opEmbed   = newOp("aten::embedding", "", "weight,indices,padding_idx")
	opSoftmax = newOp("aten::softmax", "int", "self,dim,dtype")
	opLogSm   = newOp("aten::log_softmax", "int", "self,dim,dtype")
	opCE      = newOp("aten::cross_entropy_loss", "", "self,target,weight,reduction,ignore_index,label_smoothing")
	opMSE     = newOp("aten::mse_loss", "", "self,target,reduction")
	opSDPA    = newOp("aten::scaled_dot_product_attention", "", "query,key,value,attn_mask,dropout_p,is_causal,scale,enable_gqa")
	opLN      = newOp("aten::layer_norm", "", "input,normalized_shape,weight,bias,eps")
)

// View gives the elements another shape without a copy; one size may be -1.
func (t *Tensor) View(shape ...int64) *Tensor { return opView.Begin().T(t).Ints(shape).Tensor() }

// Reshape is View, with a copy where the strides need one.
func (t *Tensor) Reshape(shape ...int64) *Tensor { return opReshape.Begin().T(t).Ints(shape).Tensor() }

// Transpose swaps two dimensions, as a view.
func (t *Tensor) Transpose(dim0, dim1 int) *Tensor { return opTranspose.one(t, dim0, dim1) }

// T is the transpose of a matrix, as a view.
func (t *Tensor) T() *Tensor { return opT.one(t) }

// Permute reorders the dimensions, as a view.
func (t *Tensor) Permute(dims ...int64) *Tensor { return opPermute.Begin().T(t).Ints(dims).Tensor() }

// Unsqueeze inserts a dimension of size 1, as a view.
func (t *Tensor) Unsqueeze(dim int) *Tensor { return opUnsqueeze.one(t, dim) }

// Squeeze removes dimension dim if its size is 1, as a view.
func (t *Tensor) Squeeze(dim int) *Tensor { return opSqueeze.one(t, dim) }

// Expand repeats dimensions of size 1 without a copy; -1 keeps a size.
func (t *Tensor) Expand(shape ...int64) *Tensor { return opExpand.Begin().T(t).Ints(shape).Tensor() }

// Flatten joins the dimensions from start to end.
func (t *Tensor) Flatten(start, end int) *Tensor { return opFlatten.one(t, start, end) }

// Narrow is the view of length elements from start along dim.
func (t *Tensor) Narrow(dim int, start, length int64) *Tensor {
	return opNarrow.one(t, dim, start, length)
}

// Select is the view at index along dim, which disappears.
func (t *Tensor) Select(dim int, index int64) *Tensor {
	return opSelect.Begin().T(t).Int(int64(dim)).Int(index).Tensor()
}

// SplitWithSizes cuts t into views along dim.
func (t *Tensor) SplitWithSizes(sizes []int64, dim int) []*Tensor {
	return opSplitSizes.call(t, sizes, dim)[0].([]*Tensor)
}

// Chunk cuts t into at most n views of ceil(size/n) along dim.
func (t *Tensor) Chunk(n int64, dim int) []*Tensor { return opChunk.call(t, n, dim)[0].([]*Tensor) }

// AsStrided is the view with the given geometry over t's storage, in elements.
func (t *Tensor) AsStrided(shape, stride []int64, offset int64) *Tensor {
	return opAsStrided.one(t, shape, stride, offset)
}

// RepeatInterleave repeats every element n times along dim.
func (t *Tensor) RepeatInterleave(n int64, dim int) *Tensor { return opRepeatInt.one(t, n, dim) }

// Contiguous is t, or a copy in row-major order.
func (t *Tensor) Contiguous() *Tensor { return opContiguous.one(t) }

// Clone copies t; gradients flow through.
func (t *Tensor) Clone() *Tensor { return opClone.one(t) }

// Detach is a view outside the graph.
func (t *Tensor) Detach() *Tensor { return opDetach.one(t) }

// AliasView is a view of the whole tensor inside the graph.
func (t *Tensor) AliasView() *Tensor { return opAlias.one(t) }

// To converts the elements; the result is a handle of t itself where nothing changes.
func (t *Tensor) To(dtype DType) *Tensor { return opToDtype.one(t, dtype, false, false) }

// ToDevice copies t to a device; the result is a handle of t itself where it is there already.
func (t *Tensor) ToDevice(d Device) *Tensor { return opToDevice.one(t, d, false) }

// ToDeviceAsync is ToDevice that does not wait for a copy between a GPU and pinned memory: it is queued on the current
// stream. The result is complete for operators on that stream; the host must wait for an event before it reads it.
func (t *Tensor) ToDeviceAsync(d Device) *Tensor { return opToDevice.one(t, d, true) }

// CopyAsync is Copy that does not wait, in the cases and with the care of ToDeviceAsync.
func (t *Tensor) CopyAsync(src *Tensor) *Tensor { opCopy_.inPlace(t, src, true); return t }

// PinMemory copies a CPU tensor into page-locked memory, which GPUs read and write without the host's help; t itself where
// it lies there already. Without a GPU there is no such memory: an error of kind ErrNoDevice.
func (t *Tensor) PinMemory() *Tensor {
	if err := CUDA(-1).Check(); err != nil {
		panic(wrap("PinMemory", err))
	}
	return opPinMemory.one(t)
}

// IsPinned tells whether t lies in page-locked memory.
func (t *Tensor) IsPinned() bool { return opIsPinned.call(t)[0].(bool) }

// ViewDType reads the bytes of t as another type; the last dimension changes its size.
func (t *Tensor) ViewDType(dtype DType) *Tensor { return opViewDtype.one(t, dtype) }

// IndexSelect picks the slices of dim that index (int64, 1-D) names.
func (t *Tensor) IndexSelect(dim int, index *Tensor) *Tensor {
	return opIndexSelect.Begin().T(t).Int(int64(dim)).T(index).Tensor()
}

// Gather picks single elements along dim.
func (t *Tensor) Gather(dim int, index *Tensor) *Tensor {
	return opGather.Begin().T(t).Int(int64(dim)).T(index).Tensor()
}

// Index is PyTorch's t[i, j, …] with tensors of indices or masks; nil stands for ":".
func (t *Tensor) Index(indices ...*Tensor) *Tensor { return opIndex.one(t, indices) }

// Nonzero lists the indices of the elements that are not 0, shape (n, dims).
func (t *Tensor) Nonzero() *Tensor { return opNonzero.one(t) }

// TopK gives the k largest values along dim, sorted, and their indices.
func (t *Tensor) TopK(k int64, dim int) (values, indices *Tensor) {
	r := opTopK.call(t, k, dim, true, true)
	return r[0].(*Tensor), r[1].(*Tensor)
}

// Sort sorts along dim and gives the indices too.
func (t *Tensor) Sort(dim int, descending bool) (values, indices *Tensor) {
	r := opSort.call(t, dim, descending)
	return r[0].(*Tensor), r[1].(*Tensor)
}

// Cumsum adds up along dim.
func (t *Tensor) Cumsum(dim int) *Tensor { return opCumsum.one(t, dim) }

// Multinomial draws n indices with the given weights along the last dimension.
func (t *Tensor) Multinomial(n int64, replacement bool, g *Generator) *Tensor {
	return opMultinomial.one(t, n, replacement, g)
}

// Argmax is the index of the largest element along dim.
func (t *Tensor) Argmax(dim int) *Tensor { return opArgmax.one(t, dim, false) }

// Sum adds all elements, or those along dims.
func (t *Tensor) Sum(dims ...int64) *Tensor {
	if len(dims) == 0 {
		return opSumAll.one(t, nil)
	}
	return opSumDim.one(t, dims, false)
}

// SumKeep is Sum along dims that keeps them with size 1.
func (t *Tensor) SumKeep(dims ...int64) *Tensor {
	return opSumDim.Begin().T(t).Ints(dims).Bool(true).Tensor()
}

// Mean is the average of all elements, or of those along dims.
func (t *Tensor) Mean(dims ...int64) *Tensor {
	if len(dims) == 0 {
		return opMeanAll.one(t)
	}
	return opMeanDim.one(t, dims, false)
}

// MeanKeep is Mean along dims that keeps them with size 1.
func (t *Tensor) MeanKeep(dims ...int64) *Tensor {
	return opMeanDim.Begin().T(t).Ints(dims).Bool(true).Tensor()
}

// Max is the largest element.
func (t *Tensor) Max() *Tensor { return opMaxAll.one(t) }

// Min is the smallest element.
func (t *Tensor) Min() *Tensor { return opMinAll.one(t) }

// AMax is the largest element along dims.
func (t *Tensor) AMax(keepDim bool, dims ...int64) *Tensor {
	return opAmax.Begin().T(t).Ints(dims).Bool(keepDim).Tensor()
}

// Any tells whether some element is true.
func (t *Tensor) Any() *Tensor { return opAnyAll.one(t) }

// All tells whether every element is true.
func (t *Tensor) All() *Tensor { return opAllAll.one(t) }

// Norm is the ord-norm of all elements; ord may be +Inf.
func (t *Tensor) Norm(ord float64) *Tensor { return opNorm.one(t, ord, nil, false, nil) }

// LogSumExp is log Σ exp along dim.
func (t *Tensor) LogSumExp(dim int64) *Tensor { return opLogsumexp.one(t, []int64{dim}, false) }

// MatMul is the matrix product over the last two dimensions; the others broadcast.
func (t *Tensor) MatMul(o *Tensor) *Tensor { return opMatmul.one(t, o) }

// MM is the product of two matrices.
func (t *Tensor) MM(o *Tensor) *Tensor { return opMM.one(t, o) }

// BMM is the product of two batches of matrices.
func (t *Tensor) BMM(o *Tensor) *Tensor { return opBMM.one(t, o) }

// AddMM is beta·t + alpha·(a × b).
func (t *Tensor) AddMM(a, b *Tensor, beta, alpha float64) *Tensor {
	return opAddmm.one(t, a, b, beta, alpha)
}

// Linear is t × weightᵀ + bias; weight is (out, in), bias (out) or nil.
func (t *Tensor) Linear(weight, bias *Tensor) *Tensor { return opLinear.one(t, weight, bias) }

// Embedding picks rows of weight (n, d) by int64 indices of any shape; the result has one dimension more.
func Embedding(weight, indices *Tensor) *Tensor { return opEmbed.one(weight, indices, -1) }

// Softmax normalises exp(t) along dim.
func (t *Tensor) Softmax(dim int) *Tensor { return opSoftmax.one(t, dim, nil) }

// LogSoftmax is the logarithm of Softmax.
func (t *Tensor) LogSoftmax(dim int) *Tensor { return opLogSm.one(t, dim, nil) }

// Reduction says how losses are joined.
type Reduction int

// The reductions, with libtorch's numbers.
const (
	ReduceNone Reduction = 0
	ReduceMean Reduction = 1
	ReduceSum  Reduction = 2
)

// CrossEntropy is the loss of logits (n, classes) against int64 targets (n); targets equal to ignoreIndex do not count.
func (t *Tensor) CrossEntropy(target *Tensor, reduction Reduction, ignoreIndex int64) *Tensor {
	return opCE.one(t, target, nil, int(reduction), ignoreIndex, 0.0)
}

// MSELoss is the squared error against target.
func (t *Tensor) MSELoss(target *Tensor, reduction Reduction) *Tensor {
	return opMSE.one(t, target, int(reduction))
}

// AttentionOptions are the settings of ScaledDotProductAttention. The zero value is full attention without a mask.
type AttentionOptions struct {
	Mask    *Tensor // bool (true: take part) or float (added), broadcast to (batch, heads, queries, keys)
	Dropout float64
	Causal  bool
	Scale   float64 // 0 means 1/sqrt(head size)
	GQA     bool    // fewer key/value heads than query heads
}

// ScaledDotProductAttention is softmax(q·kᵀ·scale)·v; q is (batch, heads, queries, size), k and v (batch, kv heads, keys,
// size).
func ScaledDotProductAttention(q, k, v *Tensor, o AttentionOptions) *Tensor {
	var scale any
	if o.Scale != 0 {
		scale = o.Scale
	}
	return opSDPA.one(q, k, v, o.Mask, o.Dropout, o.Causal, scale, o.GQA)
}

// LayerNorm normalises over the last len(shape) dimensions; weight and bias may be nil.
func (t *Tensor) LayerNorm(shape []int64, weight, bias *Tensor, eps float64) *Tensor {
	return opLN.one(t, shape, weight, bias, eps)
}
