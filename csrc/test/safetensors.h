// A reader of safetensors files for tests: the whole file in memory, tensors as views into it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace gofsdp::test {

class SafeTensors {
 public:
  explicit SafeTensors(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      throw std::runtime_error("cannot open " + path);
    }
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes_.data(), sizeof(header));
    text_ = std::string(bytes_.data() + 8, header);
    data_ = 8 + header;
    parse();
  }

  bool has(const std::string& name) const {
    return entries_.count(name) != 0;
  }

  at::Tensor get(const std::string& name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      throw std::runtime_error("no tensor " + name);
    }
    const Entry& e = it->second;
    const char* at = bytes_.data() + data_ + e.begin;
    at::Tensor t = at::empty(e.shape, at::TensorOptions().dtype(e.dtype));
    std::memcpy(t.mutable_data_ptr(), at, static_cast<size_t>(e.end - e.begin));
    return t;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, entry] : entries_) {
      all.push_back(name);
    }
    return all;
  }

 private:
  struct Entry {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;
  };

  static at::ScalarType dtype_of(const std::string& s) {
    static const std::map<std::string, at::ScalarType> known = {{"F32", at::kFloat},  {"BF16", at::kBFloat16},
                                                                {"F16", at::kHalf},   {"U8", at::kByte},
                                                                {"I64", at::kLong},   {"I32", at::kInt}};
    return known.at(s);
  }

  std::string quoted(size_t& i) const {
    const size_t from = text_.find('"', i) + 1, to = text_.find('"', from);
    i = to + 1;
    return text_.substr(from, to - from);
  }

  std::vector<int64_t> integers(size_t& i) const {
    const size_t from = text_.find('[', i) + 1, to = text_.find(']', from);
    i = to + 1;
    std::vector<int64_t> all;
    for (size_t at = from; at < to;) {
      size_t used = 0;
      all.push_back(std::stoll(text_.substr(at, to - at), &used));
      at = text_.find(',', at + used);
      at = at == std::string::npos ? to : at + 1;
    }
    return all;
  }

  // Reads {"name":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},...}; the goldens hold no escapes.
  void parse() {
    size_t i = text_.find('{') + 1;
    while (text_.find('"', i) != std::string::npos) {
      const std::string name = quoted(i);
      const size_t close = text_.find('}', i);
      if (name != "__metadata__") {
        Entry e;
        while (text_.find('"', i) < close) {
          const std::string key = quoted(i);
          if (key == "dtype") {
            e.dtype = dtype_of(quoted(i));
          } else if (key == "shape") {
            e.shape = integers(i);
          } else {
            const auto offsets = integers(i);
            e.begin = offsets.at(0);
            e.end = offsets.at(1);
          }
        }
        entries_[name] = std::move(e);
      }
      i = close + 1;
    }
  }

  std::vector<char> bytes_;
  std::string text_;
  size_t data_ = 0;
  std::map<std::string, Entry> entries_;
};

} // namespace gofsdp::test
