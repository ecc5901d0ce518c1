// Package aten has every operator of libtorch as a typed Go function. Package torch has the idiomatic few hundred as
// methods of Tensor; this package has the rest too, named and shaped after the operators' schemas.
//
// # Names
//
// A function is named as its operator, then its overload, in camel case: aten::pow.Tensor_Scalar is PowTensorScalar. An
// underscore at the end is InPlace, before the overload: aten::add_.Tensor is AddInPlaceTensor. Operators that begin with
// an underscore, which PyTorch keeps for its own use, begin with Under: aten::_softmax is UnderSoftmax. The families
// aten::_foreach_… and aten::_fused_… are plain ForeachAddList, FusedAdamwInPlace. Each comment shows the schema.
//
// # Arguments
//
// Arguments without a default come in the order of the schema, keyword ones too. Those with a default are the fields of
// a struct that may be left out:
//
//	y := aten.AddTensor(a, b)
//	y := aten.AddTensor(a, b, aten.AddOptions{Alpha: 2})
//
// The zero value of every field is the operator's default. So a field is a pointer where zero is another value than the
// default: new(int64(1)) makes one. In arguments that may be None, nil is None. A Scalar of the schema is a torch.Number:
// 2, 0.5 or 1+2i.
//
// # Results
//
// Results have the types of the schema. An operator that writes to arguments and gives them as its results returns
// the very tensors that it was passed. Errors, scopes and threads are as for the methods of torch.Tensor.
//
// Arguments are matched by name with the library that runs, at an operator's first call. So a program works with older
// and newer versions of libtorch, as long as it sets no argument that they do not have.
package aten

import "github.com/gofsdp/gofsdp/torch"

//go:generate go run ../../internal/opsgen -out .

// first gives the options of a call, of which there may be one.
func first[T any](list []T) (o T) {
	switch len(list) {
	case 0:
		return o
	case 1:
		return list[0]
	}
	panic(&torch.Error{Op: "aten", Msg: "options are given twice", Kind: torch.ErrArgument})
}
