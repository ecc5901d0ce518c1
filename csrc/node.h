// Autograd nodes in the pointer type of the libtorch at hand.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace gofsdp {

// Makes a node. libtorch 2.13 holds nodes in c10::intrusive_ptr, earlier ones in std::shared_ptr.
template <class T, class... Args>
auto make_node(Args&&... args) {
  using torch::autograd::Node;
  using Pointer = std::remove_cvref_t<decltype(torch::autograd::Edge().function)>;
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace gofsdp
