// Calls of an operator by its C++ signature.
//
// Note [Typed calls]
// The boxed call of an operator makes a stack of IValues from the stream and takes it apart again: some 100 ns, a tenth of
// what a small operator costs. Most calls are of operators of ATen that take only tensors, or tensors and one number, and
// give one tensor. Those are called by their C++ signature, with the arguments straight from the stream and without a
// reference of their own: Go holds one for each handle for as long as the call runs. The dispatcher checks a signature
// against the kernels that are registered. Every other operator, and a stream that does not fit the signature (None,
// defaults), takes the boxed way, which also words the errors.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>

#include <tuple>
#include <utility>
#include <variant>

#include "internal.h"

namespace gofsdp {

using at::Scalar;
using at::Tensor;

template <class... F>
using AnyOf = std::variant<std::monostate, c10::TypedOperatorHandle<F>...>;

// The call of an operator that has one of these signatures, or nothing.
using Typed = AnyOf<Tensor(const Tensor&), Tensor(const Tensor&, const Tensor&),
                    Tensor(const Tensor&, const Tensor&, const Tensor&), Tensor(const Tensor&, const Scalar&),
                    Tensor(const Tensor&, const Tensor&, const Scalar&), Tensor&(Tensor&, const Tensor&),
                    Tensor&(Tensor&, const Scalar&), Tensor&(Tensor&, const Tensor&, const Scalar&)>;

// The typed call of an operator, found by its schema. Only operators of ATen: their signatures are generated from their
// schemas, and all of them are registered before the first lookup.
Typed typed_call(const c10::OperatorHandle& op);

// Held is an argument of a typed call, made from the two words that it has in the stream.
template <class T>
class Held;

template <>
class Held<Tensor> {
 public:
  static bool fits(const int64_t* w) { return w[0] == GF_TENSOR && w[1] != 0; }
  explicit Held(const int64_t* w)
      : tensor_(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
            reinterpret_cast<c10::TensorImpl*>(w[1]))) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { tensor_.unsafeReleaseTensorImpl(); }
  Tensor& get() { return tensor_; }

 private:
  Tensor tensor_;
};

template <>
class Held<Scalar> {
 public:
  static bool fits(const int64_t* w) { return w[0] == GF_DOUBLE || w[0] == GF_INT; }
  explicit Held(const int64_t* w) : scalar_(w[0] == GF_INT ? Scalar(w[1]) : Scalar(bits_to_double(w[1]))) {}
  const Scalar& get() const { return scalar_; }

 private:
  Scalar scalar_;
};

template <class R, class... A>
bool call_typed(const c10::TypedOperatorHandle<R(A...)>& op, const int64_t* args, int64_t n, int64_t* result) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    if (n != 2 * static_cast<int64_t>(sizeof...(A))) return false;
    if (!(Held<std::decay_t<A>>::fits(args + 2 * I) && ...)) return false;
    std::tuple<Held<std::decay_t<A>>...> held((args + 2 * I)...);
    if (result) {
      *result = own(Tensor(op.call(std::get<I>(held).get()...)));
    } else {
      op.call(std::get<I>(held).get()...);
    }
    return true;
  }(std::index_sequence_for<A...>());
}

// Calls op with the stream of n words, and puts the handle of its result into *result, if that is not null. Does nothing
// and gives false where there is no call for this stream.
inline bool call_typed(const Typed& op, const int64_t* args, int64_t n, int64_t* result) {
  return std::visit(
      [&]<class F>(const F& call) {
        if constexpr (std::is_same_v<F, std::monostate>) {
          return false;
        } else {
          return call_typed(call, args, n, result);
        }
      },
      op);
}

}  // namespace gofsdp
