// Calls of an operator by its C++ signature.
//
// Note [Typed calls]
// The boxed call of an operator makes a stack of IValues from the stream and takes it apart again: some 100 ns, a tenth of
// what a small operator costs. Most calls are of operators of ATen that take only tensors, or tensors and one number, and
// give one tensor. Those are called by their C++ signature, with the arguments straight from the stream and without a
// reference of their own: Go holds one for each handle for as long as the call runs. The dispatcher checks a signature
// against the kernels that are registered. Every other operator, and a stream that does not fit the signature (None, too
// few arguments, a tensor whose storage is freed), takes the boxed way, which also words the errors.
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
using CallOf = std::variant<std::monostate, c10::TypedOperatorHandle<F>...>;

using Call = CallOf<Tensor(const Tensor&), Tensor(const Tensor&, const Tensor&),
                    Tensor(const Tensor&, const Tensor&, const Tensor&), Tensor(const Tensor&, const Scalar&),
                    Tensor(const Tensor&, const Tensor&, const Scalar&), Tensor&(Tensor&, const Tensor&),
                    Tensor&(Tensor&, const Scalar&), Tensor&(Tensor&, const Tensor&, const Scalar&)>;

// The call of an operator that has one of these signatures, or nothing.
struct Typed {
  Call call;
  int64_t last[2] = {GF_NONE, 0};  // the default of the last argument, if that is a number and has one
};

// The typed call of an operator, found by its schema. Only operators of ATen: their signatures are generated from their
// schemas, and all of them are registered before the first lookup.
Typed typed_call(const c10::OperatorHandle& op);

// Held is an argument of a typed call, made from the two words that it has in the stream.
template <class T>
class Held;

template <>
class Held<Tensor> {
 public:
  static bool fits(const int64_t* w) {
    return w[0] == GF_TENSOR && w[1] != 0 && !storage_freed(Held(w).get());
  }
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
bool call_typed(const c10::TypedOperatorHandle<R(A...)>& op, const int64_t* last_default, const int64_t* args, int64_t n,
                int64_t* result) {
  constexpr size_t arity = sizeof...(A);
  constexpr int64_t before_last = 2 * (arity - 1);
  const int64_t* last = args + before_last;
  if (n == before_last || (n == before_last + 1 && *last == GF_DEFAULT)) {
    last = last_default;
  } else if (n != before_last + 2) {
    return false;
  }
  return [&]<size_t... I>(std::index_sequence<I...>) {
    const auto word = [&](size_t i) { return i + 1 < arity ? args + 2 * i : last; };
    if (!(Held<std::decay_t<A>>::fits(word(I)) && ...)) return false;
    std::tuple<Held<std::decay_t<A>>...> held(word(I)...);
    if (result) {
      *result = own(Tensor(op.call(std::get<I>(held).get()...)));
    } else {
      op.call(std::get<I>(held).get()...);
    }
    return true;
  }(std::make_index_sequence<arity>());
}

// Calls op with the stream of n words, and puts the handle of its result into *result, if that is not null. Does nothing
// and gives false where there is no call for this stream.
inline bool call_typed(const Typed& op, const int64_t* args, int64_t n, int64_t* result) {
  return std::visit(
      [&]<class F>(const F& call) {
        if constexpr (std::is_same_v<F, std::monostate>) {
          return false;
        } else {
          return call_typed(call, op.last, args, n, result);
        }
      },
      op.call);
}

}  // namespace gofsdp
