// 4-bit quantisation as dispatcher operators, and what ops.h declares.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <sstream>

#include "ops/ops.h"

namespace gofsdp::ops {

std::string describe(const Tensor& t) {
  if (!t.defined()) {
    return "none";
  }
  std::ostringstream out;
  out << t.scalar_type() << t.sizes();
  if (!t.is_cpu()) {
    out << " on " << t.device();
  }
  return out.str();
}

kernels::Quant4Type parse_quant_type(const char* op, const std::string& quant_type) {
  if (quant_type == "nf4") {
    return kernels::Quant4Type::kNF4;
  }
  TORCH_CHECK(quant_type == "fp4", "gofsdp::", op, ": quant_type must be nf4 or fp4, got \"", quant_type, "\"");
  return kernels::Quant4Type::kFP4;
}

namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void check_block_size(const char* op, int64_t block_size) {
  TORCH_CHECK(block_size >= 32 && block_size % 32 == 0, "gofsdp::", op,
              ": block_size must be a positive multiple of 32, got ", block_size);
}

void check_nested(const char* op, const Tensor& absmax, const Tensor& nested_absmax, const Tensor& offset) {
  const int64_t groups = ceil_div(absmax.numel(), kernels::kNestedBlock);
  TORCH_CHECK(nested_absmax.defined() && offset.defined(), "gofsdp::", op,
              ": a uint8 absmax needs nested_absmax and offset, got ", describe(nested_absmax), " and ",
              describe(offset));
  TORCH_CHECK(nested_absmax.scalar_type() == at::kFloat && nested_absmax.numel() == groups &&
                  nested_absmax.is_contiguous(),
              "gofsdp::", op, ": nested_absmax must be contiguous float[", groups, "], got ", describe(nested_absmax));
  TORCH_CHECK(offset.scalar_type() == at::kFloat && offset.numel() == 1, "gofsdp::", op,
              ": offset must be float[1], got ", describe(offset));
}

kernels::Scales scales_of(const Tensor& absmax, const Tensor& nested_absmax, const Tensor& offset) {
  kernels::Scales s;
  if (absmax.scalar_type() == at::kFloat) {
    s.absmax = data<float>(absmax);
  } else {
    s.codes = data<uint8_t>(absmax);
    s.nested_absmax = data<float>(nested_absmax);
    s.offset = *data<float>(offset);
  }
  return s;
}

// Buffers that nobody uses at the moment. At most kKeep stay; each thread that runs a layer takes one.
struct Pool {
  struct Buffer {
    void* data;
    size_t bytes;
  };
  static constexpr size_t kKeep = 4;
  std::mutex mutex;
  std::vector<Buffer> idle;

  ~Pool() {
    for (const Buffer& b : idle) {
      std::free(b.data);
    }
  }

  static Pool& get() {
    static Pool pool;
    return pool;
  }

  Buffer take(size_t bytes) {
    bytes = (bytes + 4095) / 4096 * 4096;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (size_t i = idle.size(); i-- > 0;) {
        if (idle[i].bytes >= bytes) {
          const Buffer b = idle[i];
          idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(i));
          return b;
        }
      }
    }
    void* data = std::aligned_alloc(4096, bytes);
    TORCH_CHECK(data != nullptr, "gofsdp: out of memory: ", bytes, " bytes of scratch for a dequantised weight");
    return {data, bytes};
  }

  // Keeps the largest buffers.
  void give(Buffer b) {
    const std::lock_guard<std::mutex> lock(mutex);
    idle.push_back(b);
    if (idle.size() > kKeep) {
      size_t smallest = 0;
      for (size_t i = 1; i < idle.size(); ++i) {
        if (idle[i].bytes < idle[smallest].bytes) {
          smallest = i;
        }
      }
      std::free(idle[smallest].data);
      idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(smallest));
    }
  }
};

} // namespace

void Quantized::check(const char* op, int64_t numel) const {
  parse_quant_type(op, quant_type);
  check_block_size(op, block_size);
  TORCH_CHECK(packed.scalar_type() == at::kByte && packed.numel() == ceil_div(numel, 2) && packed.is_contiguous(),
              "gofsdp::", op, ": packed must be contiguous uint8 with ", ceil_div(numel, 2), " bytes for ", numel,
              " weights, got ", describe(packed));
  const int64_t blocks = ceil_div(numel, block_size);
  TORCH_CHECK((absmax.scalar_type() == at::kFloat || absmax.scalar_type() == at::kByte) && absmax.numel() == blocks &&
                  absmax.is_contiguous(),
              "gofsdp::", op, ": absmax must be contiguous float or uint8 with ", blocks, " scales (", numel,
              " weights in blocks of ", block_size, "), got ", describe(absmax));
  TORCH_CHECK(absmax.device() == packed.device(), "gofsdp::", op, ": packed and absmax are on different devices: ",
              describe(packed), " and ", describe(absmax));
  if (absmax.scalar_type() == at::kByte) {
    check_nested(op, absmax, nested_absmax, offset);
  } else {
    TORCH_CHECK(!nested_absmax.defined() && !offset.defined(), "gofsdp::", op,
                ": nested_absmax and offset belong to a uint8 absmax, got ", describe(absmax));
  }
}

void dequantize_range(const Quantized& q, int64_t begin, const Tensor& out) {
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, const optional<Tensor>&,
                         const optional<Tensor>&, int64_t, std::string, int64_t);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("gofsdp::dequantize_4bit_range_", "")
                             .typed<Signature>();
  const auto optional_of = [](const Tensor& t) { return t.defined() ? optional<Tensor>(t) : std::nullopt; };
  op.call(out, q.packed, q.absmax, optional_of(q.nested_absmax), optional_of(q.offset), begin, q.quant_type,
          q.block_size);
}

Scratch::Scratch(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  if (options.device().is_cpu()) {
    const size_t bytes = static_cast<size_t>(rows * columns) * options.dtype().itemsize();
    const Pool::Buffer b = Pool::get().take(std::max<size_t>(bytes, 1));
    buffer_ = b.data;
    bytes_ = b.bytes;
    tensor_ = at::from_blob(buffer_, {rows, columns}, options);
  } else {
    tensor_ = at::empty({rows, columns}, options);
  }
}

Scratch::~Scratch() {
  if (buffer_ != nullptr) {
    Pool::get().give({buffer_, bytes_});
  }
}

Tensor Scratch::rows(int64_t rows) const {
  return rows == tensor_.size(0) ? tensor_ : tensor_.narrow(0, 0, rows);
}

namespace {

constexpr int64_t kGrain = 32768; // weights per thread, at least

std::tuple<Tensor, Tensor> quantize_4bit(const Tensor& input, const std::string& quant_type, int64_t block_size) {
  const auto type = parse_quant_type("quantize_4bit", quant_type);
  check_block_size("quantize_4bit", block_size);
  const Tensor x = input.contiguous();
  const int64_t n = x.numel(), blocks = ceil_div(n, block_size);
  Tensor packed = at::empty({ceil_div(n, 2)}, x.options().dtype(at::kByte));
  Tensor absmax = at::empty({blocks}, x.options().dtype(at::kFloat));
  dispatch_float("quantize_4bit", x, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, blocks, ceil_div(kGrain, block_size), [&](int64_t first, int64_t last) {
      kernels::quantize_4bit(data<T>(x), n, type, block_size, first, last, mutable_data<uint8_t>(packed),
                             mutable_data<float>(absmax));
    });
  });
  return {packed, absmax};
}

std::tuple<Tensor, Tensor, Tensor> quantize_absmax(const Tensor& input) {
  TORCH_CHECK(input.scalar_type() == at::kFloat && input.numel() > 0,
              "gofsdp::quantize_absmax: absmax must be float and not empty, got ", describe(input));
  const Tensor absmax = input.contiguous();
  const int64_t n = absmax.numel();
  Tensor codes = at::empty({n}, absmax.options().dtype(at::kByte));
  Tensor nested = at::empty({ceil_div(n, kernels::kNestedBlock)}, absmax.options());
  Tensor offset = at::empty({1}, absmax.options());
  kernels::quantize_absmax(data<float>(absmax), n, mutable_data<uint8_t>(codes), mutable_data<float>(nested),
                           mutable_data<float>(offset));
  return {codes, nested, offset};
}

Tensor dequantize_absmax(const Tensor& codes, const Tensor& nested_absmax, const Tensor& offset) {
  TORCH_CHECK(codes.scalar_type() == at::kByte && codes.is_contiguous(),
              "gofsdp::dequantize_absmax: q must be contiguous uint8, got ", describe(codes));
  check_nested("dequantize_absmax", codes, nested_absmax, offset);
  Tensor absmax = at::empty({codes.numel()}, nested_absmax.options());
  kernels::dequantize_absmax(scales_of(codes, nested_absmax, offset), codes.numel(), mutable_data<float>(absmax));
  return absmax;
}

void dequantize_4bit_range_(const Tensor& out, const Tensor& packed, const Tensor& absmax,
                            const optional<Tensor>& nested_absmax, const optional<Tensor>& offset, int64_t begin,
                            std::string quant_type, int64_t block_size) {
  const char* op = "dequantize_4bit_range_";
  const auto type = parse_quant_type(op, quant_type);
  check_block_size(op, block_size);
  const int64_t end = begin + out.numel();
  TORCH_CHECK(out.is_contiguous() && begin >= 0 && end <= packed.numel() * 2 && end <= absmax.numel() * block_size,
              "gofsdp::", op, ": weights ", begin, " to ", end, " do not lie in packed ", describe(packed),
              " with absmax ", describe(absmax));
  const kernels::Scales scales = scales_of(absmax, or_undefined(nested_absmax), or_undefined(offset));
  const uint8_t* codes = data<uint8_t>(packed);
  dispatch_float(op, out, [&](auto tag) {
    using T = decltype(tag);
    T* to = mutable_data<T>(out);
    at::parallel_for(begin, end, kGrain, [&](int64_t first, int64_t last) {
      kernels::dequantize_4bit(codes, scales, type, block_size, first, last, to + (first - begin));
    });
  });
}

Tensor dequantize_4bit(const Tensor& packed, const Tensor& absmax, const optional<Tensor>& nested_absmax,
                       const optional<Tensor>& offset, at::IntArrayRef shape, at::ScalarType dtype,
                       std::string quant_type, int64_t block_size) {
  const Quantized q{packed, absmax, or_undefined(nested_absmax), or_undefined(offset), std::move(quant_type), block_size};
  q.check("dequantize_4bit", c10::multiply_integers(shape));
  Tensor out = at::empty(shape, packed.options().dtype(dtype));
  dequantize_range(q, 0, out);
  return out;
}

} // namespace

TORCH_LIBRARY_FRAGMENT(gofsdp, m) {
  m.def("quantize_4bit(Tensor x, str quant_type=\"nf4\", int block_size=64) -> (Tensor packed, Tensor absmax)");
  m.def("quantize_absmax(Tensor absmax) -> (Tensor q, Tensor nested_absmax, Tensor offset)");
  m.def("dequantize_absmax(Tensor q, Tensor nested_absmax, Tensor offset) -> Tensor");
  m.def(
      "dequantize_4bit(Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? offset, int[] shape, "
      "ScalarType dtype, str quant_type=\"nf4\", int block_size=64) -> Tensor");
  m.def(
      "dequantize_4bit_range_(Tensor(a!) out, Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? offset, "
      "int begin, str quant_type, int block_size) -> ()");
}

TORCH_LIBRARY_IMPL(gofsdp, CPU, m) {
  m.impl("quantize_4bit", quantize_4bit);
  m.impl("quantize_absmax", quantize_absmax);
  m.impl("dequantize_absmax", dequantize_absmax);
  m.impl("dequantize_4bit_range_", dequantize_4bit_range_);
}

TORCH_LIBRARY_IMPL(gofsdp, CompositeExplicitAutograd, m) {
  m.impl("dequantize_4bit", dequantize_4bit);
}

} // namespace gofsdp::ops
