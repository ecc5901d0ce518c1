// Which operators have a typed call; see Note [Typed calls].
#include "typed.h"

#include <string>

namespace gofsdp {
namespace {

// A letter per argument: t a tensor, s a number, and ! after a tensor that is changed. Empty where the result is anything
// but one tensor, which for operators in place is the first argument.
std::string signature(const c10::FunctionSchema& schema) {
  const auto is = [](const c10::TypePtr& type, c10::TypeKind kind) { return type->kind() == kind; };
  if (schema.returns().size() != 1 || !is(schema.returns()[0].real_type(), c10::TypeKind::TensorType)) return "";
  std::string s;
  for (const auto& arg : schema.arguments()) {
    if (is(arg.real_type(), c10::TypeKind::TensorType)) {
      s += 't';
      if (arg.alias_info() && arg.alias_info()->isWrite()) s += '!';
    } else if (is(arg.real_type(), c10::TypeKind::NumberType)) {
      s += 's';
    } else {
      return "";
    }
  }
  return s;
}

template <class F>
Call make(const c10::OperatorHandle& op) {
  return op.typed<F>();
}

constexpr struct {
  const char* signature;
  Call (*make)(const c10::OperatorHandle&);
} calls[] = {
    {"t", make<Tensor(const Tensor&)>},
    {"tt", make<Tensor(const Tensor&, const Tensor&)>},
    {"ttt", make<Tensor(const Tensor&, const Tensor&, const Tensor&)>},
    {"ts", make<Tensor(const Tensor&, const Scalar&)>},
    {"tts", make<Tensor(const Tensor&, const Tensor&, const Scalar&)>},
    {"t!t", make<Tensor&(Tensor&, const Tensor&)>},
    {"t!s", make<Tensor&(Tensor&, const Scalar&)>},
    {"t!ts", make<Tensor&(Tensor&, const Tensor&, const Scalar&)>},
};

}  // namespace

Typed typed_call(const c10::OperatorHandle& op) {
  if (op.operator_name().getNamespace() != "aten") return {};
  const c10::FunctionSchema& schema = op.schema();
  const std::string s = signature(schema);
  for (const auto& c : calls) {
    if (s != c.signature) continue;
    Typed typed;
    try {
      typed.call = c.make(op);
    } catch (const c10::Error&) {  // its C++ signature is not the one that the schema suggests
      return {};
    }
    const auto& number = schema.arguments().back().default_value();
    if (s.back() == 's' && number && number->isInt()) {
      typed.last[0] = GF_INT;
      typed.last[1] = number->toInt();
    }
    return typed;
  }
  return {};
}

}  // namespace gofsdp
