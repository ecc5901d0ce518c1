// A C++ exception inside a function of the ABI becomes an error, and never leaves it: it would end a Go program. The tests
// run over GF_API, so that a function that is added there is tested too, and fails until it has a row in `wrong`.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "internal.h"

namespace gofsdp::test {
namespace {

// ---- callbacks ----

std::vector<uint64_t> released;  // handles of Go values, in the order in which C++ let go of them

uint64_t fail_call(uint64_t handle, int32_t, int64_t*, int64_t, int64_t*, int64_t) { return handle; }
void note_release(uint64_t handle) { released.push_back(handle); }

constexpr gf_callbacks callbacks{fail_call, note_release};

struct Error {
  int kind;
  std::string message;
  uint64_t cookie;
};

// Takes a result apart; nothing where there is no error.
std::optional<Error> error_of(gf_ret r) {
  if (!r.err) return {};
  Error e{r.err->kind, r.err->message, r.err->cookie};
  gf_error_free(r.err);
  return e;
}

// The value of a call that succeeds.
int64_t must(gf_ret r) {
  const auto e = error_of(r);
  EXPECT_FALSE(e) << (e ? e->message : "");
  return r.v;
}

int64_t find(const char* name, const char* overload = "", const char* args = "") {
  return must(gf_op_find(name, overload, args));
}

// A float32 tensor of ones, [2], that the process keeps.
int64_t ones() {
  static const int64_t t = [] {
    const int64_t args[] = {GF_INT_LIST, 1, 2};
    int64_t rets[2];
    must(gf_op_call(find("aten::ones", "", "size"), args, 3, rets, 2));
    return rets[1];
  }();
  return t;
}

int64_t generator() {
  static const int64_t g = must(gf_generator_new(1));
  return g;
}
int64_t store() {
  static const int64_t s = must(gf_store_hash());
  return s;
}
// A process group of one rank.
int64_t group() {
  static const int64_t g = must(gf_gloo_connect(store(), 0, 1, 10000, 10000, "127.0.0.1"));
  return g;
}

// ---- faults in every function ----

struct Function {
  const char* name;
  gf_ret (*zeros)();  // the call with zeros and null pointers
};

template <auto F>
struct Zeros;
template <class... A, gf_ret (*F)(A...)>
struct Zeros<F> {
  static gf_ret call() { return F(A{}...); }
};

const Function functions[] = {
#define FUNCTION(name, params, args) {#name, Zeros<&name>::call},
    GF_API(FUNCTION)
#undef FUNCTION
};

// Test names are those of the functions.
std::string name_of(const ::testing::TestParamInfo<Function>& info) { return info.param.name; }
void PrintTo(const Function& f, std::ostream* out) { *out << f.name; }

class EveryFunction : public ::testing::TestWithParam<Function> {
 protected:
  static void SetUpTestSuite() { must(gf_init(&callbacks)); }
  void SetUp() override { released.clear(); }
  void TearDown() override { fault = nullptr; }
};
INSTANTIATE_TEST_SUITE_P(Abi, EveryFunction, ::testing::ValuesIn(functions), name_of);

// Whatever the body throws, and whatever was to be done before it: with null pointers, nothing outside the guard may touch
// an argument.
TEST_P(EveryFunction, TurnsExceptionsIntoErrors) {
  const struct {
    void (*fault)();
    Error want;
  } faults[] = {
      {[] { TORCH_CHECK(false, "a fault"); }, {GF_ERR_TORCH, "a fault", 0}},
      {[] { TORCH_CHECK_WITH(OutOfMemoryError, false, "a fault"); }, {GF_ERR_OOM, "a fault", 0}},
      {[] { throw std::bad_alloc(); }, {GF_ERR_OOM, std::bad_alloc().what(), 0}},
      {[] { throw std::runtime_error("a fault"); }, {GF_ERR_OTHER, "a fault", 0}},
      {[] { throw DistFailure("a fault", false); }, {GF_ERR_DIST, "a fault", 0}},
      {[] { throw DistFailure("a fault", true); }, {GF_ERR_TIMEOUT, "a fault", 0}},
      {[] { throw DeviceMissing("a fault"); }, {GF_ERR_DEVICE, "a fault", 0}},
      {[] { throw GoError(42); }, {GF_ERR_GO, "a Go callback failed", 42}},
      {[] { throw 42; }, {GF_ERR_OTHER, "unknown C++ exception", 0}},
  };
  for (const auto& f : faults) {
    fault = f.fault;
    const auto got = error_of(GetParam().zeros());
    fault = nullptr;
    ASSERT_TRUE(got) << "no error: the body runs outside of guard";
    EXPECT_EQ(got->kind, f.want.kind);
    EXPECT_EQ(got->message, f.want.message);
    EXPECT_EQ(got->cookie, f.want.cookie);
  }
}

// ---- what each function refuses by itself ----

// A call that the function refuses, the kind of the error, and a part of its message. An empty call is of a function that
// takes anything.
struct Wrong {
  gf_ret (*call)();
  int kind = GF_ERR_TORCH;
  const char* part = "";
};
constexpr Wrong takes_anything{nullptr};

constexpr const char* freed_tensor = "the tensor was freed";
constexpr const char* freed_generator = "the generator was freed";
constexpr const char* freed_event = "the event was freed";
constexpr const char* no_device = "device type 99 does not exist";
constexpr const char* freed_handle = "the handle was freed";
char text[1 << 10];
int64_t words[8];
const int64_t no_tensor[] = {0};

const std::map<std::string, Wrong>& wrong() {
  static const std::map<std::string, Wrong> rows{
      // library
      {"gf_init", {[] { return gf_init(nullptr); }, GF_ERR_TORCH, "callbacks"}},
      {"gf_versions", {[] { return gf_versions(text, 1); }, GF_ERR_TORCH, "does not fit"}},
      {"gf_set_num_threads", {[] { return gf_set_num_threads(-1); }, GF_ERR_TORCH, "number of threads -1"}},
      {"gf_get_num_threads", takes_anything},
      {"gf_test_throw", {[] { return gf_test_throw(1); }, GF_ERR_OTHER, "test: std::exception"}},
      {"gf_test_mul", {[] { return gf_test_mul(ones(), 0, 1); }, GF_ERR_TORCH, freed_tensor}},
      // operators
      {"gf_op_find", {[] { return gf_op_find("aten::nonsense", "", ""); }, GF_ERR_TORCH, "aten::nonsense"}},
      {"gf_op_schema", {[] { return gf_op_schema("aten::relu", "nonsense", text, sizeof text); }, GF_ERR_TORCH, "aten::relu"}},
      {"gf_op_list", takes_anything},
      {"gf_op_call", {[] { return gf_op_call(0, words, 0, words, 8); }, GF_ERR_TORCH, "the operator is nil"}},
      // tensors
      {"gf_tensor_free", takes_anything},
      {"gf_tensor_free_all", takes_anything},
      {"gf_tensor_alias", {[] { return gf_tensor_alias(0); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_tensor_meta", {[] { return gf_tensor_meta(ones(), words, 8); }, GF_ERR_TORCH, "metadata does not fit"}},
      {"gf_tensor_data_ptr", {[] { return gf_tensor_data_ptr(0); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_tensor_from_blob",
       {[] {
          const int64_t sizes[] = {-1};
          return gf_tensor_from_blob(words, 6, sizes, 1, 7);
        },
        GF_ERR_TORCH, "negative"}},
      {"gf_tensor_storage_resize", {[] { return gf_tensor_storage_resize(ones(), -1); }, GF_ERR_TORCH, "-1 bytes"}},
      {"gf_tensor_variable_data", {[] { return gf_tensor_variable_data(0); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_tensor_set_data", {[] { return gf_tensor_set_data(ones(), 0); }, GF_ERR_TORCH, freed_tensor}},
      // autograd
      {"gf_set_requires_grad", {[] { return gf_set_requires_grad(0, 1); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_tensor_grad", {[] { return gf_tensor_grad(0); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_tensor_set_grad", {[] { return gf_tensor_set_grad(0, ones()); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_grad_mode", takes_anything},
      {"gf_inference_mode_push", takes_anything},
      {"gf_inference_mode_pop", {[] { return gf_inference_mode_pop(); }, GF_ERR_TORCH, "not in inference mode"}},
      {"gf_is_inference", {[] { return gf_is_inference(0); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_autocast_push", {[] { return gf_autocast_push(0, 6); }, GF_ERR_TORCH, "expected float16 or bfloat16"}},
      {"gf_autocast_pop", {[] { return gf_autocast_pop(); }, GF_ERR_TORCH, "in no autocast region"}},
      {"gf_autocast_dtype", {[] { return gf_autocast_dtype(99); }, GF_ERR_TORCH, ""}},
      {"gf_backward",
       {[] {
          const int64_t roots[] = {ones()};
          return gf_backward(roots, nullptr, 1, 0, 0);
        },
        GF_ERR_TORCH, "does not require grad"}},
      {"gf_grad", {[] { return gf_grad(no_tensor, nullptr, 1, no_tensor, 1, 0, 0, 0, words); }, GF_ERR_TORCH, ""}},
      {"gf_tensor_hook", {[] { return gf_tensor_hook(ones(), 7); }, GF_ERR_TORCH, "require gradient"}},
      {"gf_tensor_hook_remove", {[] { return gf_tensor_hook_remove(0, 0); }, GF_ERR_TORCH, freed_tensor}},
      {"gf_post_accumulate_hook", {[] { return gf_post_accumulate_hook(ones(), 7); }, GF_ERR_TORCH, "need a leaf"}},
      {"gf_post_accumulate_hook_remove",
       {[] { return gf_post_accumulate_hook_remove(ones(), 3); }, GF_ERR_TORCH, "no post-accumulate hook 3"}},
      {"gf_function_record",
       {[] { return gf_function_record(7, "f", nullptr, 0, no_tensor, words, 1, nullptr, 0, words); }, GF_ERR_TORCH, "an output"}},
      {"gf_queue_callback", {[] { return gf_queue_callback(7); }, GF_ERR_TORCH, "backward"}},
      {"gf_saved_hooks_push", takes_anything},
      {"gf_saved_hooks_pop", {[] { return gf_saved_hooks_pop(); }, GF_ERR_TORCH, "no saved-tensor hooks"}},
      {"gf_anomaly_mode", takes_anything},
      // randomness
      {"gf_manual_seed", takes_anything},
      {"gf_generator_new", takes_anything},
      {"gf_generator_free", takes_anything},
      {"gf_generator_seed", {[] { return gf_generator_seed(0, 1); }, GF_ERR_TORCH, freed_generator}},
      {"gf_generator_state", {[] { return gf_generator_state(0); }, GF_ERR_TORCH, freed_generator}},
      {"gf_generator_initial_seed", {[] { return gf_generator_initial_seed(0); }, GF_ERR_TORCH, freed_generator}},
      {"gf_generator_new_on", {[] { return gf_generator_new_on(99, 0, 1); }, GF_ERR_TORCH, no_device}},
      {"gf_generator_default", {[] { return gf_generator_default(99, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_generator_set_state", {[] { return gf_generator_set_state(generator(), ones()); }, GF_ERR_TORCH, ""}},
      // memory
      {"gf_memory_stats", {[] { return gf_memory_stats(words, 2); }, GF_ERR_TORCH, "3 words"}},
      {"gf_memory_reset_peak", takes_anything},
      {"gf_memory_trim", takes_anything},
      {"gf_memory_limit", {[] { return gf_memory_limit(-1); }, GF_ERR_TORCH, "limit of -1"}},
      {"gf_free_memory_callback", takes_anything},
      {"gf_test_free_memory", takes_anything},
      // devices
      {"gf_device_count", {[] { return gf_device_count(99); }, GF_ERR_TORCH, no_device}},
      {"gf_device_check", {[] { return gf_device_check(99, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_device_exchange", {[] { return gf_device_exchange(99, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_device_synchronize", {[] { return gf_device_synchronize(99, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_device_memory_stats", {[] { return gf_device_memory_stats(1, 0, words, 8); }, GF_ERR_TORCH, "10 words"}},
      {"gf_device_reset_peak", {[] { return gf_device_reset_peak(99, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_device_memory_info", {[] { return gf_device_memory_info(99, 0, words); }, GF_ERR_TORCH, no_device}},
      {"gf_device_empty_cache", {[] { return gf_device_empty_cache(0); }, GF_ERR_TORCH, "CPU has no"}},
      {"gf_stream_get", {[] { return gf_stream_get(0, 0, 0, 0, words); }, GF_ERR_TORCH, "CPU has no"}},
      {"gf_stream_exchange", {[] { return gf_stream_exchange(99, 0, 0, words); }, GF_ERR_TORCH, no_device}},
      {"gf_stream_query", {[] { return gf_stream_query(99, 0, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_stream_synchronize", {[] { return gf_stream_synchronize(99, 0, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_stream_native", {[] { return gf_stream_native(99, 0, 0); }, GF_ERR_TORCH, no_device}},
      {"gf_event_new", {[] { return gf_event_new(0, 0); }, GF_ERR_TORCH, "CPU has no"}},
      {"gf_event_free", takes_anything},
      {"gf_event_record", {[] { return gf_event_record(0, 1, 0, 0); }, GF_ERR_TORCH, freed_event}},
      {"gf_event_block", {[] { return gf_event_block(0, 1, 0, 0); }, GF_ERR_TORCH, freed_event}},
      {"gf_event_query", {[] { return gf_event_query(0); }, GF_ERR_TORCH, freed_event}},
      {"gf_event_synchronize", {[] { return gf_event_synchronize(0); }, GF_ERR_TORCH, freed_event}},
      {"gf_event_elapsed", {[] { return gf_event_elapsed(0, 0); }, GF_ERR_TORCH, freed_event}},
      {"gf_tensor_record_stream", {[] { return gf_tensor_record_stream(0, 1, 0, 0); }, GF_ERR_TORCH, freed_tensor}},
      // rendezvous
      {"gf_store_tcp", {[] { return gf_store_tcp("127.0.0.1", 1, 0, 0, 100); }, GF_ERR_TIMEOUT, "127.0.0.1"}},
      {"gf_store_hash", takes_anything},
      {"gf_store_prefix", {[] { return gf_store_prefix(0, "p"); }, GF_ERR_TORCH, freed_handle}},
      {"gf_store_free", takes_anything},
      {"gf_store_port", {[] { return gf_store_port(store()); }, GF_ERR_TORCH, "not a TCP store"}},
      {"gf_store_set", {[] { return gf_store_set(0, "k", "v", 1); }, GF_ERR_DIST, freed_handle}},
      {"gf_store_get", {[] { return gf_store_get(store(), "missing", 10, text, sizeof text); }, GF_ERR_TIMEOUT, ""}},
      {"gf_store_add", {[] { return gf_store_add(0, "k", 1); }, GF_ERR_DIST, freed_handle}},
      {"gf_store_check", {[] { return gf_store_check(0, "k"); }, GF_ERR_DIST, freed_handle}},
      // process group
      {"gf_gloo_connect", {[] { return gf_gloo_connect(store(), 5, 2, 100, 100, "127.0.0.1"); }, GF_ERR_DIST, "rank"}},
      {"gf_pg_free", takes_anything},
      {"gf_pg_abort", {[] { return gf_pg_abort(0); }, GF_ERR_DIST, freed_handle}},
      {"gf_all_gather", {[] { return gf_all_gather(group(), ones(), 0); }, GF_ERR_DIST, freed_tensor}},
      {"gf_all_gather_list", {[] { return gf_all_gather_list(group(), no_tensor, 1, ones()); }, GF_ERR_DIST, freed_tensor}},
      {"gf_reduce_scatter", {[] { return gf_reduce_scatter(group(), 0, ones(), 0); }, GF_ERR_DIST, freed_tensor}},
      {"gf_all_reduce", {[] { return gf_all_reduce(0, ones(), 0); }, GF_ERR_DIST, freed_handle}},
      {"gf_broadcast", {[] { return gf_broadcast(group(), ones(), 3); }, GF_ERR_DIST, "root"}},
      {"gf_send", {[] { return gf_send(group(), ones(), 3, 0); }, GF_ERR_DIST, "no peer 3"}},
      {"gf_recv", {[] { return gf_recv(group(), ones(), 0, 0); }, GF_ERR_DIST, "no peer 0"}},
      {"gf_barrier", {[] { return gf_barrier(0); }, GF_ERR_DIST, freed_handle}},
      {"gf_work_wait", {[] { return gf_work_wait(0, 1); }, GF_ERR_DIST, freed_handle}},
      {"gf_work_done", {[] { return gf_work_done(0); }, GF_ERR_DIST, freed_handle}},
      {"gf_work_free", takes_anything},
  };
  return rows;
}

TEST_P(EveryFunction, RefusesWhatIsWrong) {
  const auto row = wrong().find(GetParam().name);
  ASSERT_NE(row, wrong().end()) << "add a row for " << GetParam().name << " to wrong()";
  const Wrong& w = row->second;
  if (!w.call) return;
  const auto got = error_of(w.call());
  ASSERT_TRUE(got) << "no error";
  EXPECT_EQ(got->kind, w.kind) << got->message;
  EXPECT_NE(got->message.find(w.part), std::string::npos) << got->message;
}

TEST(Wrong, HasNoRowOfAFunctionThatIsGone) {
  std::map<std::string, Wrong> rest = wrong();
  for (const Function& f : functions) rest.erase(f.name);
  for (const auto& [name, row] : rest) ADD_FAILURE() << name;
}

// ---- Go values are released once, wherever a function fails ----

struct Taker {
  const char* name;
  gf_ret (*call)();
};
const Taker takers[] = {
    {"gf_tensor_from_blob", [] { return gf_tensor_from_blob(words, 120, words, 1, 7); }},
    {"gf_tensor_hook", [] { return gf_tensor_hook(0, 7); }},
    {"gf_post_accumulate_hook", [] { return gf_post_accumulate_hook(0, 7); }},
    {"gf_function_record", [] { return gf_function_record(7, "f", no_tensor, 1, no_tensor, words, 1, nullptr, 0, words); }},
    {"gf_queue_callback", [] { return gf_queue_callback(7); }},
};

TEST(Callbacks, AreReleasedByAFunctionThatFails) {
  must(gf_init(&callbacks));
  for (const Taker& t : takers) {
    released.clear();
    EXPECT_TRUE(error_of(t.call())) << t.name;
    EXPECT_EQ(released, std::vector<uint64_t>{7}) << t.name;
  }
  std::vector<Taker> all(std::begin(takers), std::end(takers));
  all.push_back({"gf_saved_hooks_push", [] { return gf_saved_hooks_push(7); }});
  all.push_back({"gf_free_memory_callback", [] { return gf_free_memory_callback(7); }});
  for (const Taker& t : all) {
    released.clear();
    fault = [] { throw std::bad_alloc(); };
    EXPECT_TRUE(error_of(t.call())) << t.name;
    fault = nullptr;
    EXPECT_EQ(released, std::vector<uint64_t>{7}) << t.name << " before its body";
  }
}

TEST(Callbacks, OfHooksThatArePushedAreReleasedByThePop) {
  must(gf_init(&callbacks));
  released.clear();
  must(gf_saved_hooks_push(7));
  must(gf_saved_hooks_push(8));
  EXPECT_TRUE(released.empty());
  must(gf_saved_hooks_pop());
  must(gf_saved_hooks_pop());
  EXPECT_EQ(released, (std::vector<uint64_t>{8, 7}));
}

TEST(Callbacks, ThatFailComeOutOfBackward) {
  must(gf_init(&callbacks));
  const int64_t x = must(gf_tensor_variable_data(ones()));
  must(gf_set_requires_grad(x, 1));
  const int64_t args[] = {GF_TENSOR, x};
  int64_t rets[2];
  must(gf_op_call(find("aten::sum", "", "self"), args, 2, rets, 2));
  released.clear();
  must(gf_tensor_hook(rets[1], 7));
  const auto e = error_of(gf_backward(&rets[1], nullptr, 1, 0, 0));
  ASSERT_TRUE(e);
  EXPECT_EQ(e->kind, GF_ERR_GO);
  EXPECT_EQ(e->cookie, 7u);  // fail_call fails with the handle
  must(gf_tensor_free(rets[1]));
  must(gf_tensor_free(x));
  EXPECT_EQ(released, std::vector<uint64_t>{7});
}

// ---- errors of operators ----

TEST(Operators, GiveTheirErrorByBothWays) {
  must(gf_init(&callbacks));
  const int64_t three = [] {
    const int64_t args[] = {GF_INT_LIST, 1, 3};
    int64_t rets[2];
    must(gf_op_call(find("aten::ones", "", "size"), args, 3, rets, 2));
    return rets[1];
  }();
  const int64_t args[] = {GF_TENSOR, ones(), GF_TENSOR, three};
  int64_t rets[2];
  // The first is called by its C++ signature, the second through a stack: see Note [Typed calls].
  for (const char* order : {"self,other", "other,self"}) {
    const auto e = error_of(gf_op_call(find("aten::mul", "Tensor", order), args, 4, rets, 2));
    ASSERT_TRUE(e) << order;
    EXPECT_EQ(e->kind, GF_ERR_TORCH);
    EXPECT_NE(e->message.find("must match the size"), std::string::npos) << e->message;
  }
  must(gf_tensor_free(three));
}

TEST(Operators, RefuseTensorsOfFreedStorage) {
  const int64_t args[] = {GF_INT_LIST, 1, 2};
  int64_t made[2], rets[2];
  must(gf_op_call(find("aten::ones", "", "size"), args, 3, made, 2));
  must(gf_tensor_storage_resize(made[1], 0));
  const auto e = error_of(gf_op_call(find("aten::neg"), made, 2, rets, 2));
  ASSERT_TRUE(e);
  EXPECT_NE(e->message.find("is freed"), std::string::npos) << e->message;
  must(gf_op_call(find("aten::detach"), made, 2, rets, 2)); // a view
  must(gf_tensor_free(rets[1]));
  must(gf_tensor_free(made[1]));
}

}  // namespace
}  // namespace gofsdp::test
