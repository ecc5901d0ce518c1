// Autograd: backward, hooks, functions whose backward is a Go func, saved-tensor hooks.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "internal.h"
#include "memory.h"
#include "node.h"

namespace gofsdp {

void sync_num_threads();

namespace {

using torch::autograd::variable_list;

// Note [Saved-tensor hooks without Python]
// libtorch keeps its stack of default saved-tensor hooks as Python objects, and asks the engine to turn the top of that
// stack into a SavedVariableHooks. This engine answers from a stack of Go values per thread instead; it is installed as
// the default engine before the first operator. Everything else is the base engine's.
thread_local std::vector<std::shared_ptr<GoHandle>> saved_hooks;

struct GoSavedHooks final : torch::autograd::SavedVariableHooks {
  std::shared_ptr<GoHandle> owner;
  int64_t ticket = 0;
  bool packed = false;

  explicit GoSavedHooks(std::shared_ptr<GoHandle> o) : owner(std::move(o)) {}
  ~GoSavedHooks() override {
    if (packed) go.call(owner->h, GF_EV_PACK_RELEASE, &ticket, 1, nullptr, 0);
  }
  void call_pack_hook(const at::Tensor& t) override {
    int64_t in = own(t);
    call_go(owner->h, GF_EV_PACK, &in, 1, &ticket, 1);
    packed = true;
  }
  at::Tensor call_unpack_hook() override {
    int64_t in = ticket, out = 0;
    call_go(owner->h, GF_EV_UNPACK, &in, 1, &out, 1);
    return take(out);
  }
};

struct GoEngine final : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (saved_hooks.empty()) return nullptr;
    return std::make_unique<GoSavedHooks>(saved_hooks.back());
  }
};

torch::autograd::Engine& go_engine() {
  static auto* engine = new GoEngine;  // lives as long as the process, as libtorch's own does
  return *engine;
}

// libtorch has one post-accumulate hook per leaf; this one calls any number of Go values, in the order of registration.
struct GoPostAccumulate final : torch::autograd::PostAccumulateGradHook {
  std::vector<std::shared_ptr<GoHandle>> owners;  // null where a hook was removed
  void operator()(const at::Tensor& t) override {
    auto now = owners;  // a hook may add and remove hooks
    for (auto& owner : now) {
      if (!owner) continue;
      int64_t in = own(t);
      call_go(owner->h, GF_EV_POST_ACCUMULATE, &in, 1, nullptr, 0);
    }
  }
  static GoPostAccumulate* of(const at::Tensor& leaf) {
    if (!torch::autograd::impl::get_autograd_meta(leaf)) return nullptr;
    return dynamic_cast<GoPostAccumulate*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
  }
};

// A node whose backward is a Go func. The Go value lives until the node dies: cgo handles are freed by C++, since only
// C++ knows when the graph is gone. What backward needs is kept as SavedVariables, so that saved-tensor hooks (activation
// checkpointing, offload) and the check for changes in place see it as they see any operator's. They come back with their
// place in the graph, and the engine has set the grad mode to "create graph" by then: a backward that computes with
// recording on is differentiated like any other computation.
struct GoFunction final : torch::autograd::Node {
  GoHandle owner;
  std::string label;
  std::vector<torch::autograd::SavedVariable> saved;
  GoFunction(GoHandle o, std::string l) : owner(std::move(o)), label(std::move(l)) {}
  std::string name() const override { return label; }
  variable_list apply(variable_list&& grads) override {
    variable_list kept;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& s : saved) kept.push_back(s.unpack(getptr()));
    }
    std::vector<int64_t> in;
    for (auto& g : grads) in.push_back(own(std::move(g)));
    for (auto& t : kept) in.push_back(own(std::move(t)));
    std::vector<int64_t> out(num_outputs(), 0);
    call_go(owner.h, GF_EV_BACKWARD, in.data(), static_cast<int64_t>(in.size()), out.data(),
            static_cast<int64_t>(out.size()));
    variable_list result;
    for (int64_t h : out) result.push_back(take(h));
    return result;
  }
  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& s : saved) s.reset_data();
  }
};

variable_list borrow_all(const int64_t* h, int64_t n) {
  variable_list list;
  list.reserve(n);
  for (int64_t i = 0; i < n; i++) list.push_back(borrow_optional(h[i]));
  return list;
}

}  // namespace

void install_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    install_allocator();
    torch::autograd::set_default_engine_stub(&go_engine);
  });
}

}  // namespace gofsdp

using namespace gofsdp;

extern "C" {

gf_ret gf_set_requires_grad(int64_t t, int64_t on) {
  return guard([&] { borrow(t).requires_grad_(on != 0); });
}

gf_ret gf_tensor_grad(int64_t t) {
  return guard([&] { return own(borrow(t).grad()); });
}

gf_ret gf_tensor_set_grad(int64_t t, int64_t grad) {
  return guard([&] { borrow(t).mutable_grad() = borrow_optional(grad); });
}

// set: 0 off, 1 on, -1 only read. Returns the mode before.
gf_ret gf_grad_mode(int64_t set) {
  return guard([&] {
    bool before = at::GradMode::is_enabled();
    if (set >= 0) at::GradMode::set_enabled(set != 0);
    return before;
  });
}

gf_ret gf_anomaly_mode(int64_t set) {
  return guard([&] {
    bool before = torch::autograd::AnomalyMode::is_enabled();
    if (set >= 0) torch::autograd::AnomalyMode::set_enabled(set != 0);
    return before;
  });
}

gf_ret gf_backward(const int64_t* roots, const int64_t* grads, int64_t n, int64_t retain, int64_t create) {
  return guard([&] {
    variable_list g;
    if (grads) g = borrow_all(grads, n);
    sync_num_threads();
    torch::autograd::backward(borrow_all(roots, n), g, retain != 0, create != 0);
  });
}

gf_ret gf_grad(const int64_t* outputs, const int64_t* grads, int64_t n, const int64_t* inputs, int64_t n_in,
               int64_t retain, int64_t create, int64_t allow_unused, int64_t* out) {
  return guard([&] {
    variable_list g;
    if (grads) g = borrow_all(grads, n);
    sync_num_threads();
    auto result = torch::autograd::grad(borrow_all(outputs, n), borrow_all(inputs, n_in), g, retain != 0, create != 0,
                                        allow_unused != 0);
    for (size_t i = 0; i < result.size(); i++) out[i] = own(std::move(result[i]));
  });
}

gf_ret gf_tensor_hook(int64_t t, uint64_t handle) {
  GoHandle given(handle);
  return guard([&] {
    auto owner = std::make_shared<GoHandle>(std::move(given));
    return static_cast<int64_t>(borrow(t).register_hook([owner](const at::Tensor& grad) -> at::Tensor {
      int64_t in = own(grad), out = 0;
      call_go(owner->h, GF_EV_TENSOR_HOOK, &in, 1, &out, 1);
      return take(out);
    }));
  });
}

gf_ret gf_tensor_hook_remove(int64_t t, int64_t id) {
  return guard([&] { borrow(t).remove_hook(static_cast<unsigned>(id)); });
}

// Returns an id for gf_post_accumulate_hook_remove.
gf_ret gf_post_accumulate_hook(int64_t t, uint64_t handle) {
  GoHandle given(handle);
  return guard([&] {
    at::Tensor leaf = borrow(t);
    TORCH_CHECK(leaf.is_leaf() && leaf.requires_grad(), "post-accumulate hooks need a leaf that requires grad");
    if (!GoPostAccumulate::of(leaf))
      torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<GoPostAccumulate>());
    auto& owners = GoPostAccumulate::of(leaf)->owners;
    owners.push_back(std::make_shared<GoHandle>(std::move(given)));
    return static_cast<int64_t>(owners.size() - 1);
  });
}

gf_ret gf_post_accumulate_hook_remove(int64_t t, int64_t id) {
  return guard([&] {
    auto* hook = GoPostAccumulate::of(borrow(t));
    TORCH_CHECK(hook && id >= 0 && id < static_cast<int64_t>(hook->owners.size()), "no post-accumulate hook ", id);
    hook->owners[id].reset();
  });
}

// Makes outputs (computed by Go without recording) the results of a node on inputs whose backward is the Go value behind
// handle and which keeps saved: inputs and outputs with their place in the graph, other tensors as constants. An output
// whose fixed is not 0 never requires grad. wrapped receives new handles, which alias the outputs' storage.
gf_ret gf_function_record(uint64_t handle, const char* name, const int64_t* inputs, int64_t n_in, const int64_t* outputs,
                          const int64_t* fixed, int64_t n_out, const int64_t* saved, int64_t n_saved,
                          int64_t* wrapped) {
  GoHandle given(handle);
  return guard([&] {
    auto node = make_node<GoFunction>(std::move(given), name);
    variable_list in = borrow_all(inputs, n_in);
    bool record = at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(in);
    if (record) node->set_next_edges(torch::autograd::collect_next_edges(in));
    variable_list out;
    for (int64_t i = 0; i < n_out; i++) {
      at::Tensor o = borrow_optional(outputs[i]);
      TORCH_CHECK(o.defined(), "an output of a function is nil");
      at::Tensor t = o.detach();
      if (record && !fixed[i] && torch::autograd::isDifferentiableType(t.scalar_type())) {
        torch::autograd::set_history(t, node);
      } else if (record) {
        node->add_input_metadata(torch::autograd::Node::undefined_input());
      }
      out.push_back(std::move(t));
    }
    for (int64_t i = 0; record && i < n_saved; i++) {
      const int64_t *in_end = inputs + n_in, *out_end = outputs + n_out;
      const int64_t* at = std::find(outputs, out_end, saved[i]);
      bool is_output = saved[i] && at != out_end && std::find(inputs, in_end, saved[i]) == in_end;
      node->saved.emplace_back(is_output ? out[at - outputs] : borrow_optional(saved[i]), is_output);
    }
    for (int64_t i = 0; i < n_out; i++) wrapped[i] = own(std::move(out[i]));
  });
}

gf_ret gf_queue_callback(uint64_t handle) {
  GoHandle given(handle);
  return guard([&] {
    auto owner = std::make_shared<GoHandle>(std::move(given));
    torch::autograd::Engine::get_default_engine().queue_callback(
        [owner] { call_go(owner->h, GF_EV_FINAL, nullptr, 0, nullptr, 0); });
  });
}

gf_ret gf_saved_hooks_push(uint64_t handle) {
  GoHandle given(handle);
  return guard([&] { saved_hooks.push_back(std::make_shared<GoHandle>(std::move(given))); });
}

gf_ret gf_saved_hooks_pop(void) {
  return guard([&] {
    TORCH_CHECK(!saved_hooks.empty(), "no saved-tensor hooks on this thread");
    saved_hooks.pop_back();
  });
}

}  // extern "C"
