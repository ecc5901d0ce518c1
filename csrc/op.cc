// Operators by name through libtorch's dispatcher, errors, and facts about the library.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/util/SmallVector.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <thread>

#include "internal.h"
#include "typed.h"
#include "version.h"

namespace gofsdp {

gf_callbacks go = {};
void (*fault)() = nullptr;
void install_engine();

// The thread count is a setting of each OS thread in OpenMP, and Go calls from any thread: each takes over the last
// setting before it computes.
static std::atomic<int> wanted_threads{0};
static thread_local int applied_threads = 0;

void sync_num_threads() {
  int want = wanted_threads.load(std::memory_order_relaxed);
  if (want == applied_threads) return;
  at::set_num_threads(want);
  applied_threads = want;
}

gf_error* make_error(int kind, uint64_t cookie, const char* message) noexcept {
  auto* e = static_cast<gf_error*>(std::malloc(sizeof(gf_error)));
  if (!e) std::abort();  // 32 bytes are not to be had: nothing can be reported any more
  e->kind = kind;
  e->cookie = cookie;
  e->message = ::strdup(message);
  return e;
}

gf_error* current_error() noexcept {
  try {
    throw;
  } catch (const GoError& e) {
    return make_error(GF_ERR_GO, e.cookie, e.what());
  } catch (const DistFailure& e) {
    return make_error(e.timeout ? GF_ERR_TIMEOUT : GF_ERR_DIST, 0, e.what());
  } catch (const DeviceMissing& e) {
    return make_error(GF_ERR_DEVICE, 0, e.what());
  } catch (const c10::OutOfMemoryError& e) {
    return make_error(GF_ERR_OOM, 0, e.what_without_backtrace());
  } catch (const c10::DistError& e) {
    return make_error(GF_ERR_DIST, 0, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    const char* m = e.what_without_backtrace();
    bool oom = std::strstr(m, "allocate memory") != nullptr;
    return make_error(oom ? GF_ERR_OOM : GF_ERR_TORCH, 0, m);
  } catch (const std::bad_alloc& e) {
    return make_error(GF_ERR_OOM, 0, e.what());
  } catch (const std::exception& e) {
    return make_error(GF_ERR_OTHER, 0, e.what());
  } catch (...) {
    return make_error(GF_ERR_OTHER, 0, "unknown C++ exception");
  }
}

namespace {

// An operator together with the order in which Go passes its arguments: position[i] is the schema index of Go's i-th
// argument. Matching by name lets one build of the Go code run with libraries whose schemas have grown.
struct Op {
  c10::OperatorHandle handle;
  std::vector<int> position;
  std::vector<std::string> names;
  std::vector<c10::TypePtr> types;  // of the schema's arguments, without Optional
  bool view = false;                // see only_views
  Typed typed;                      // empty where the operator has none of the signatures in typed.h
};

c10::TypePtr strip_optional(c10::TypePtr type) {
  if (auto opt = type->cast<c10::OptionalType>()) return opt->getElementType();
  return type;
}

// Reader walks the value stream and refuses to run past its end.
struct Reader {
  const int64_t* p;
  const int64_t* end;
  int64_t next() {
    TORCH_CHECK(p < end, "the argument stream ends early");
    return *p++;
  }
  const int64_t* take(int64_t n) {
    TORCH_CHECK(n >= 0 && n <= end - p, "the argument stream ends early");
    const int64_t* q = p;
    p += n;
    return q;
  }
  std::string text() {
    int64_t n = next();
    TORCH_CHECK(n >= 0 && n <= (end - p) * 8, "the argument stream ends early");
    return std::string(reinterpret_cast<const char*>(take((n + 7) / 8)), n);
  }
};

c10::IValue list_of_ints(const int64_t* v, int64_t n, const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::ListType) {
    auto elem = type->castRaw<c10::ListType>()->getElementType();
    if (elem->kind() == c10::TypeKind::FloatType) {
      c10::List<double> list;
      for (int64_t i = 0; i < n; i++) list.push_back(static_cast<double>(v[i]));
      return list;
    }
    if (elem->kind() == c10::TypeKind::NumberType) {
      c10::List<at::Scalar> list;
      for (int64_t i = 0; i < n; i++) list.push_back(at::Scalar(v[i]));
      return list;
    }
  }
  c10::List<int64_t> list;
  list.reserve(n);
  for (int64_t i = 0; i < n; i++) list.push_back(v[i]);
  return list;
}

// The tensor of a handle, for an argument of an operator. Kernels read through a null pointer where the storage is freed
// (Note [Storage free and refill]); only views of such a tensor make sense.
at::Tensor tensor_argument(int64_t h, const c10::Argument& arg, bool view) {
  at::Tensor t = borrow(h);
  TORCH_CHECK(view || !storage_freed(t), "the storage of argument ", arg.name(), " (", t.sizes(), " ", t.scalar_type(), ") is freed");
  return t;
}

// Operators that never look at the elements.
bool only_views(const std::string& name) {
  static const char* const names[] = {"detach", "alias", "view", "as_strided", "transpose", "t", "permute", "narrow",
                                      "select", "slice", "unsqueeze", "squeeze", "expand", "split_with_sizes", "chunk"};
  return std::any_of(std::begin(names), std::end(names), [&](const char* n) { return name == std::string("aten::") + n; });
}

// type is arg's, without Optional; view tells whether the operator only makes a view.
c10::IValue read_value(Reader& r, const c10::Argument& arg, const c10::TypePtr& type, bool view) {
  switch (r.next()) {
    case GF_NONE:
      return {};
    case GF_TENSOR: {
      at::Tensor t = tensor_argument(r.next(), arg, view);
      if (type->kind() == c10::TypeKind::ListType) {  // one tensor where a list is expected
        c10::List<at::Tensor> list;
        list.push_back(t);
        return list;
      }
      return t;
    }
    case GF_INT: {
      int64_t v = r.next();
      if (type->kind() == c10::TypeKind::FloatType) return static_cast<double>(v);
      if (type->kind() == c10::TypeKind::ListType) return list_of_ints(&v, 1, type);
      return v;
    }
    case GF_DOUBLE:
      return bits_to_double(r.next());
    case GF_BOOL:
      return r.next() != 0;
    case GF_COMPLEX: {
      double re = bits_to_double(r.next());
      return c10::complex<double>(re, bits_to_double(r.next()));
    }
    case GF_STRING:
      return r.text();
    case GF_STRING_LIST: {
      int64_t n = r.next();
      c10::List<std::string> list;
      for (int64_t i = 0; i < n; i++) list.push_back(r.text());
      return list;
    }
    case GF_SCALAR_LIST: {
      int64_t n = r.next();
      c10::List<at::Scalar> list;
      for (int64_t i = 0; i < n; i++) list.push_back(read_value(r, arg, c10::NumberType::get(), view).toScalar());
      return list;
    }
    case GF_INT_LIST: {
      int64_t n = r.next();
      return list_of_ints(r.take(n), n, type);
    }
    case GF_DOUBLE_LIST: {
      int64_t n = r.next();
      const int64_t* v = r.take(n);
      c10::List<double> list;
      for (int64_t i = 0; i < n; i++) list.push_back(bits_to_double(v[i]));
      return list;
    }
    case GF_BOOL_LIST: {
      int64_t n = r.next();
      const int64_t* v = r.take(n);
      c10::List<bool> list;
      for (int64_t i = 0; i < n; i++) list.push_back(v[i] != 0);
      return list;
    }
    case GF_TENSOR_LIST: {
      int64_t n = r.next();
      const int64_t* v = r.take(n);
      bool optional_elements =
          type->kind() == c10::TypeKind::ListType &&
          type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType;
      if (optional_elements) {
        c10::List<std::optional<at::Tensor>> list;
        for (int64_t i = 0; i < n; i++)
          list.push_back(v[i] ? std::optional<at::Tensor>(tensor_argument(v[i], arg, view)) : std::nullopt);
        return list;
      }
      c10::List<at::Tensor> list;
      list.reserve(n);
      for (int64_t i = 0; i < n; i++) list.push_back(v[i] ? tensor_argument(v[i], arg, view) : at::Tensor());
      return list;
    }
    case GF_DEVICE: {
      auto kind = static_cast<c10::DeviceType>(r.next());
      return c10::Device(kind, static_cast<c10::DeviceIndex>(r.next()));
    }
    case GF_GENERATOR:
      return at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(
          reinterpret_cast<c10::GeneratorImpl*>(r.next())));
    case GF_STREAM: {
      int64_t kind = r.next(), index = r.next();
      return c10::Stream(c10::Stream::UNSAFE,
                         c10::Device(static_cast<c10::DeviceType>(kind), static_cast<c10::DeviceIndex>(index)), r.next());
    }
    case GF_STORAGE:
      return borrow(r.next()).storage();
    case GF_DEFAULT:
      if (!arg.default_value() && arg.type()->kind() == c10::TypeKind::OptionalType) return {};
      TORCH_CHECK(arg.default_value().has_value(), "argument ", arg.name(), " has no default");
      return *arg.default_value();
    default:
      TORCH_CHECK(false, "unknown tag in the argument stream for ", arg.name());
  }
}

using Words = c10::SmallVector<int64_t, 16>;

void write_value(const c10::IValue& v, Words& out) {
  if (v.isTensor()) {
    out.push_back(GF_TENSOR);
    out.push_back(own(v.toTensor()));
  } else if (v.isInt() || v.isSymInt()) {
    out.push_back(GF_INT);
    out.push_back(v.isInt() ? v.toInt() : v.toSymInt().expect_int());
  } else if (v.isDouble()) {
    out.push_back(GF_DOUBLE);
    out.push_back(double_to_bits(v.toDouble()));
  } else if (v.isBool()) {
    out.push_back(GF_BOOL);
    out.push_back(v.toBool());
  } else if (v.isTensorList()) {
    auto list = v.toTensorVector();
    out.push_back(GF_TENSOR_LIST);
    out.push_back(static_cast<int64_t>(list.size()));
    for (auto& t : list) out.push_back(own(t));
  } else if (v.isIntList()) {
    auto list = v.toIntVector();
    out.push_back(GF_INT_LIST);
    out.push_back(static_cast<int64_t>(list.size()));
    out.append(list.begin(), list.end());
  } else if (v.isDoubleList()) {
    auto list = v.toDoubleVector();
    out.push_back(GF_DOUBLE_LIST);
    out.push_back(static_cast<int64_t>(list.size()));
    for (double d : list) out.push_back(double_to_bits(d));
  } else if (v.isBoolList()) {
    auto list = v.toBoolList();
    out.push_back(GF_BOOL_LIST);
    out.push_back(static_cast<int64_t>(list.size()));
    for (bool b : list) out.push_back(b);
  } else if (v.isOptionalTensorList()) {
    auto list = v.toOptionalTensorVector();
    out.push_back(GF_TENSOR_LIST);
    out.push_back(static_cast<int64_t>(list.size()));
    for (auto& t : list) out.push_back(t ? own(*t) : 0);
  } else if (v.isComplexDouble()) {
    auto c = v.toComplexDouble();
    out.append({GF_COMPLEX, double_to_bits(c.real()), double_to_bits(c.imag())});
  } else if (v.isString()) {
    const std::string& text = v.toStringRef();
    out.append({GF_STRING, static_cast<int64_t>(text.size())});
    size_t start = out.size();
    out.resize(start + (text.size() + 7) / 8, 0);
    std::memcpy(out.data() + start, text.data(), text.size());
  } else if (v.isDevice()) {
    auto d = v.toDevice();
    out.append({GF_DEVICE, static_cast<int64_t>(d.type()), d.index()});
  } else if (v.isNone()) {
    out.push_back(GF_NONE);
  } else {
    TORCH_CHECK(false, "results of type ", v.tagKind(), " cannot be passed to Go");
  }
}

// Releases the tensors of a stream of results that Go will not see.
void free_tensors(const Words& s) {
  for (size_t i = 0; i < s.size();) {
    int64_t tag = s[i++];
    size_t n = 1;
    switch (tag) {
      case GF_NONE: n = 0; break;
      case GF_COMPLEX:
      case GF_DEVICE: n = 2; break;
      case GF_STRING: n = (static_cast<size_t>(s[i++]) + 7) / 8; break;
      case GF_TENSOR_LIST:
      case GF_INT_LIST:
      case GF_DOUBLE_LIST:
      case GF_BOOL_LIST: n = static_cast<size_t>(s[i++]); break;
      default: break;
    }
    if (tag == GF_TENSOR || tag == GF_TENSOR_LIST)
      for (size_t j = 0; j < n; j++) take(s[i + j]);
    i += n;
  }
}

int64_t copy_text(const std::string& text, char* out, int64_t cap) {
  TORCH_CHECK(static_cast<int64_t>(text.size()) < cap, "text of ", text.size(), " bytes does not fit");
  std::memcpy(out, text.c_str(), text.size() + 1);
  return static_cast<int64_t>(text.size());
}

}  // namespace
}  // namespace gofsdp

using namespace gofsdp;

extern "C" {

void gf_error_free(gf_error* err) {
  if (!err) return;
  std::free(err->message);
  std::free(err);
}

void gf_buffer_free(int64_t* buffer) { std::free(buffer); }

gf_ret gf_init(const gf_callbacks* callbacks) {
  return guard([&] {
    TORCH_CHECK(callbacks && callbacks->call && callbacks->release, "gf_init needs both callbacks");
    go = *callbacks;
    install_engine();
    return int64_t{GF_ABI};
  });
}

gf_ret gf_versions(char* out, int64_t cap) {
  return guard([&] {
    std::ostringstream s;
    s << "built " << TORCH_VERSION << ", running " << running_version() << "\n" << at::get_parallel_info();
    return copy_text(s.str(), out, cap);
  });
}

gf_ret gf_set_num_threads(int64_t n) {
  return guard([&] {
    TORCH_CHECK(n > 0 && n <= 4096, "number of threads ", n);
    wanted_threads.store(static_cast<int>(n));
    sync_num_threads();
  });
}

gf_ret gf_get_num_threads(void) {
  return guard([&] {
    sync_num_threads();
    return at::get_num_threads();
  });
}

// Proves in a test that no kind of exception leaves the ABI.
gf_ret gf_test_throw(int64_t what) {
  return guard([&] {
    switch (what) {
      case 0: TORCH_CHECK(false, "test: c10::Error");
      case 1: throw std::runtime_error("test: std::exception");
      case 2: throw std::bad_alloc();
      case 3: throw 42;
      case 4: throw DistFailure("test: collective", true);
      default: return;
    }
  });
}

gf_ret gf_op_find(const char* name, const char* overload, const char* arg_names) {
  return guard([&] {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    auto op = std::make_unique<Op>(Op{handle, {}, {}, {}, only_views(name), {}});
    const auto& args = handle.schema().arguments();
    TORCH_CHECK(args.size() <= 64, name, ": ", args.size(), " arguments");  // gf_op_call has one bit for each
    for (const auto& arg : args) op->types.push_back(strip_optional(arg.real_type()));
    std::istringstream names(arg_names);
    for (std::string want; std::getline(names, want, ',');) {
      int found = -1;
      for (size_t i = 0; i < args.size(); i++)
        if (args[i].name() == want) found = static_cast<int>(i);
      op->position.push_back(found);  // -1: allowed only while the value is the default
      op->names.push_back(want);
    }
    bool in_order = true;
    for (size_t i = 0; i < op->position.size(); i++) in_order = in_order && op->position[i] == static_cast<int>(i);
    if (in_order) op->typed = typed_call(handle);
    return reinterpret_cast<int64_t>(op.release());
  });
}

gf_ret gf_op_schema(const char* name, const char* overload, char* out, int64_t cap) {
  return guard([&] {
    std::ostringstream s;
    s << c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema();
    return copy_text(s.str(), out, cap);
  });
}

// The schemas of all operators, one a line, sorted. The result is the length; nothing is written where it exceeds cap.
gf_ret gf_op_list(char* out, int64_t cap) {
  return guard([&] {
    auto& dispatcher = c10::Dispatcher::singleton();
    std::vector<std::string> lines;
    for (const auto& name : dispatcher.getAllOpNames()) {
      auto op = dispatcher.findSchema(name);
      if (!op) continue;
      std::ostringstream s;
      s << op->schema() << '\n';
      lines.push_back(s.str());
    }
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const auto& line : lines) all += line;
    auto size = static_cast<int64_t>(all.size());
    if (size <= cap) std::memcpy(out, all.data(), all.size());
    return size;
  });
}

gf_ret gf_op_call(int64_t h, const int64_t* args, int64_t n, int64_t* rets, int64_t cap) {
  return guard([&] {
    TORCH_CHECK(h != 0, "the operator is nil");
    const Op& op = *reinterpret_cast<Op*>(h);
    sync_num_threads();
    if (!rets || cap >= 2) {
      int64_t result = 0;
      if (call_typed(op.typed, args, n, rets ? &result : nullptr)) {
        if (!rets) return int64_t{0};
        rets[0] = GF_TENSOR;
        rets[1] = result;
        return int64_t{2};
      }
    }
    const auto& schema = op.handle.schema();
    const auto& formals = schema.arguments();
    // The stack of the last call on this thread serves again. A call inside this one finds none, and makes its own.
    static thread_local torch::jit::Stack spare;
    torch::jit::Stack stack = std::move(spare);
    stack.resize(formals.size());
    uint64_t given = 0;
    Reader r{args, args + n};
    for (size_t i = 0; r.p < r.end; i++) {
      if (op.position.empty()) {
        TORCH_CHECK(i < formals.size(), schema.name(), ": ", i + 1, " arguments, the operator takes ", formals.size());
        stack[i] = read_value(r, formals[i], op.types[i], op.view);
        given |= uint64_t{1} << i;
        continue;
      }
      TORCH_CHECK(i < op.position.size(), schema.name(), ": more arguments than names");
      int at = op.position[i];
      if (at < 0) {
        TORCH_CHECK(*r.p == GF_DEFAULT, schema.name(), ": this libtorch has no argument ", op.names[i], ", which was given");
        r.next();
        continue;
      }
      stack[at] = read_value(r, formals[at], op.types[at], op.view);
      given |= uint64_t{1} << at;
    }
    for (size_t i = 0; i < formals.size(); i++) {
      if (given >> i & 1) continue;
      TORCH_CHECK(formals[i].default_value().has_value(), schema.name(), ": argument ", formals[i].name(), " is missing");
      stack[i] = *formals[i].default_value();
    }
    op.handle.callBoxed(stack);
    Words out;
    if (rets) {
      try {
        for (auto& v : stack) write_value(v, out);
      } catch (...) {
        free_tensors(out);
        throw;
      }
    }
    stack.clear();
    spare = std::move(stack);
    if (!rets) return int64_t{0};
    auto words = static_cast<int64_t>(out.size());
    if (words <= cap) {
      std::memcpy(rets, out.data(), words * sizeof(int64_t));
      return words;
    }
    auto* buffer = static_cast<int64_t*>(std::malloc(words * sizeof(int64_t)));
    if (!buffer || cap < 2) {
      std::free(buffer);
      free_tensors(out);
      throw std::bad_alloc();
    }
    std::memcpy(buffer, out.data(), words * sizeof(int64_t));
    rets[0] = reinterpret_cast<int64_t>(buffer);
    rets[1] = words;
    return int64_t{-1};
  });
}

}  // extern "C"
