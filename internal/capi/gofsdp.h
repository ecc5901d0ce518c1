// The C ABI of libgofsdp.so: plain C, opaque handles, fixed-width integers.
//
// Every function is noexcept on the C++ side and returns a gf_ret by value: the result, or an error object that the
// caller frees. No error travels through thread-local state, because a Go goroutine may move to another thread
// between two C calls.
//
// GF_API lists each function once: X(name, (parameters), (arguments)). The library defines the functions, and
// loader.c in this folder resolves them with dlsym and forwards to them.
#ifndef GOFSDP_H
#define GOFSDP_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Kinds of error; the Go side maps them to sentinel values.
enum gf_kind {
  GF_ERR_OTHER = 0,      // any other C++ exception
  GF_ERR_TORCH = 1,      // c10::Error: a fault in operator arguments
  GF_ERR_OOM = 2,        // out of memory
  GF_ERR_GO = 3,         // a Go callback failed; cookie names its Go error
  GF_ERR_DIST = 4,       // a collective or the store failed
  GF_ERR_NO_SYMBOL = 5,  // the library lacks the function
  GF_ERR_TIMEOUT = 6,    // a collective or the store waited too long
  GF_ERR_DEVICE = 7,     // there is no such device here
};

typedef struct gf_error {
  int32_t kind;
  uint64_t cookie;
  char* message;
} gf_error;

typedef struct gf_ret {
  int64_t v;
  gf_error* err;
} gf_ret;

// Tags of the value stream in which operator arguments and results travel: one int64 tag, then its words.
enum gf_tag {
  GF_NONE = 0,
  GF_TENSOR = 1,       // handle
  GF_INT = 2,          // value
  GF_DOUBLE = 3,       // IEEE bits
  GF_BOOL = 4,         // 0 or 1
  GF_STRING = 5,       // byte count, then the bytes padded to whole words
  GF_INT_LIST = 6,     // count, values
  GF_DOUBLE_LIST = 7,  // count, IEEE bits
  GF_BOOL_LIST = 8,    // count, 0 or 1
  GF_TENSOR_LIST = 9,  // count, handles; 0 is an absent tensor
  GF_DEVICE = 10,      // type, index
  GF_GENERATOR = 11,   // handle
  GF_DEFAULT = 12,     // the schema's default; None for an optional argument without one
  GF_COMPLEX = 13,     // IEEE bits of the real and of the imaginary part
  GF_SCALAR_LIST = 14, // count, then a tag and its words for each
  GF_STRING_LIST = 15, // count, then byte count and padded bytes for each
  GF_STREAM = 16,      // device type, device index, stream id
  GF_STORAGE = 17,     // handle of a tensor: its storage
};

// Events that the library reports to Go through gf_callbacks.call.
enum gf_event {
  GF_EV_TENSOR_HOOK = 0,      // in: gradient            out: replacement, or 0
  GF_EV_POST_ACCUMULATE = 1,  // in: the leaf tensor
  GF_EV_BACKWARD = 2,         // in: output gradients, then saved tensors; out: input gradients (0: none)
  GF_EV_FINAL = 3,            // end of the outermost backward
  GF_EV_PACK = 4,             // in: tensor to save, out: opaque ticket (64 bits)
  GF_EV_UNPACK = 5,           // in: ticket             out: tensor
  GF_EV_PACK_RELEASE = 6,     // in: ticket that will not be unpacked any more
  GF_EV_FREE_MEMORY = 7,      // an allocation is about to fail; out: 1 if something was freed
};

// Go's side of the callbacks. call returns 0, or the cookie of the Go error. Tensor handles passed in are owned by the
// receiver, in both directions. release drops the Go value behind a handle.
typedef struct gf_callbacks {
  uint64_t (*call)(uint64_t handle, int32_t event, int64_t* in, int64_t n_in, int64_t* out, int64_t n_out);
  void (*release)(uint64_t handle);
} gf_callbacks;

#define GF_API(X)                                                                                                     \
  /* library */                                                                                                       \
  X(gf_init, (const gf_callbacks* callbacks), (callbacks))                                                            \
  X(gf_versions, (char* out, int64_t cap), (out, cap))                                                                \
  X(gf_set_num_threads, (int64_t n), (n))                                                                             \
  X(gf_get_num_threads, (void), ())                                                                                   \
  X(gf_test_throw, (int64_t what), (what))                                                                            \
  X(gf_test_mul, (int64_t a, int64_t b, int64_t n), (a, b, n))                                                        \
  /* operators */                                                                                                     \
  X(gf_op_find, (const char* name, const char* overload, const char* arg_names), (name, overload, arg_names))        \
  X(gf_op_schema, (const char* name, const char* overload, char* out, int64_t cap), (name, overload, out, cap))      \
  X(gf_op_list, (char* out, int64_t cap), (out, cap))                                                                 \
  X(gf_op_call, (int64_t op, const int64_t* args, int64_t n, int64_t* rets, int64_t cap), (op, args, n, rets, cap))  \
  /* tensors */                                                                                                       \
  X(gf_tensor_free, (int64_t t), (t))                                                                                 \
  X(gf_tensor_free_all, (const int64_t* list, int64_t n), (list, n))                                                  \
  X(gf_tensor_alias, (int64_t t), (t))                                                                                \
  X(gf_tensor_meta, (int64_t t, int64_t* out, int64_t cap), (t, out, cap))                                            \
  X(gf_tensor_data_ptr, (int64_t t), (t))                                                                             \
  X(gf_tensor_from_blob, (void* data, int64_t dtype, const int64_t* sizes, int64_t n, uint64_t handle),              \
    (data, dtype, sizes, n, handle))                                                                                  \
  X(gf_tensor_storage_resize, (int64_t t, int64_t nbytes), (t, nbytes))                                               \
  X(gf_tensor_variable_data, (int64_t t), (t))                                                                        \
  X(gf_tensor_set_data, (int64_t t, int64_t src), (t, src))                                                           \
  /* autograd */                                                                                                      \
  X(gf_set_requires_grad, (int64_t t, int64_t on), (t, on))                                                           \
  X(gf_tensor_grad, (int64_t t), (t))                                                                                 \
  X(gf_tensor_set_grad, (int64_t t, int64_t grad), (t, grad))                                                         \
  X(gf_grad_mode, (int64_t set), (set))                                                                               \
  X(gf_inference_mode_push, (void), ())                                                                               \
  X(gf_inference_mode_pop, (void), ())                                                                                \
  X(gf_is_inference, (int64_t t), (t))                                                                                \
  X(gf_autocast_push, (int64_t device, int64_t dtype), (device, dtype))                                               \
  X(gf_autocast_pop, (void), ())                                                                                      \
  X(gf_autocast_dtype, (int64_t device), (device))                                                                    \
  X(gf_backward, (const int64_t* roots, const int64_t* grads, int64_t n, int64_t retain, int64_t create),            \
    (roots, grads, n, retain, create))                                                                                \
  X(gf_grad, (const int64_t* outputs, const int64_t* grads, int64_t n, const int64_t* inputs, int64_t n_in,          \
              int64_t retain, int64_t create, int64_t allow_unused, int64_t* out),                                    \
    (outputs, grads, n, inputs, n_in, retain, create, allow_unused, out))                                             \
  X(gf_tensor_hook, (int64_t t, uint64_t handle), (t, handle))                                                        \
  X(gf_tensor_hook_remove, (int64_t t, int64_t id), (t, id))                                                          \
  X(gf_post_accumulate_hook, (int64_t t, uint64_t handle), (t, handle))                                               \
  X(gf_post_accumulate_hook_remove, (int64_t t, int64_t id), (t, id))                                                 \
  X(gf_function_record, (uint64_t handle, const char* name, const int64_t* inputs, int64_t n_in,                      \
                         const int64_t* outputs, const int64_t* fixed, int64_t n_out, const int64_t* saved,           \
                         int64_t n_saved, int64_t* wrapped),                                                          \
    (handle, name, inputs, n_in, outputs, fixed, n_out, saved, n_saved, wrapped))                                     \
  X(gf_queue_callback, (uint64_t handle), (handle))                                                                   \
  X(gf_saved_hooks_push, (uint64_t handle), (handle))                                                                 \
  X(gf_saved_hooks_pop, (void), ())                                                                                   \
  X(gf_anomaly_mode, (int64_t set), (set))                                                                            \
  /* randomness */                                                                                                    \
  X(gf_manual_seed, (int64_t seed), (seed))                                                                           \
  X(gf_generator_new, (int64_t seed), (seed))                                                                         \
  X(gf_generator_free, (int64_t g), (g))                                                                              \
  X(gf_generator_seed, (int64_t g, int64_t seed), (g, seed))                                                          \
  X(gf_generator_initial_seed, (int64_t g), (g))                                                                      \
  X(gf_generator_state, (int64_t g), (g))                                                                             \
  X(gf_generator_set_state, (int64_t g, int64_t state), (g, state))                                                   \
  /* memory */                                                                                                        \
  X(gf_memory_stats, (int64_t* out, int64_t cap), (out, cap))                                                         \
  X(gf_memory_reset_peak, (void), ())                                                                                 \
  X(gf_memory_trim, (void), ())                                                                                       \
  X(gf_memory_limit, (int64_t bytes), (bytes))                                                                        \
  X(gf_free_memory_callback, (uint64_t handle), (handle))                                                             \
  X(gf_test_free_memory, (void), ())                                                                                  \
  /* devices */                                                                                                       \
  X(gf_device_count, (int64_t type), (type))                                                                          \
  X(gf_device_check, (int64_t type, int64_t index), (type, index))                                                    \
  X(gf_device_exchange, (int64_t type, int64_t index), (type, index))                                                 \
  X(gf_device_synchronize, (int64_t type, int64_t index), (type, index))                                              \
  X(gf_device_memory_stats, (int64_t type, int64_t index, int64_t* out, int64_t cap), (type, index, out, cap))       \
  X(gf_device_reset_peak, (int64_t type, int64_t index), (type, index))                                               \
  X(gf_device_memory_info, (int64_t type, int64_t index, int64_t* out), (type, index, out))                           \
  X(gf_device_empty_cache, (int64_t type), (type))                                                                    \
  X(gf_stream_get, (int64_t type, int64_t index, int64_t which, int64_t priority, int64_t* out),                     \
    (type, index, which, priority, out))                                                                              \
  X(gf_stream_exchange, (int64_t type, int64_t index, int64_t id, int64_t* out), (type, index, id, out))             \
  X(gf_stream_query, (int64_t type, int64_t index, int64_t id), (type, index, id))                                   \
  X(gf_stream_synchronize, (int64_t type, int64_t index, int64_t id), (type, index, id))                             \
  X(gf_stream_native, (int64_t type, int64_t index, int64_t id), (type, index, id))                                  \
  X(gf_event_new, (int64_t type, int64_t timing), (type, timing))                                                     \
  X(gf_event_free, (int64_t e), (e))                                                                                  \
  X(gf_event_record, (int64_t e, int64_t type, int64_t index, int64_t id), (e, type, index, id))                     \
  X(gf_event_block, (int64_t e, int64_t type, int64_t index, int64_t id), (e, type, index, id))                      \
  X(gf_event_query, (int64_t e), (e))                                                                                 \
  X(gf_event_synchronize, (int64_t e), (e))                                                                           \
  X(gf_event_elapsed, (int64_t a, int64_t b), (a, b))                                                                 \
  X(gf_tensor_record_stream, (int64_t t, int64_t type, int64_t index, int64_t id), (t, type, index, id))             \
  X(gf_generator_new_on, (int64_t type, int64_t index, int64_t seed), (type, index, seed))                           \
  X(gf_generator_default, (int64_t type, int64_t index), (type, index))                                               \
  /* rendezvous */                                                                                                    \
  X(gf_store_tcp, (const char* host, int64_t port, int64_t server, int64_t world, int64_t timeout_ms),               \
    (host, port, server, world, timeout_ms))                                                                          \
  X(gf_store_hash, (void), ())                                                                                        \
  X(gf_store_prefix, (int64_t store, const char* prefix), (store, prefix))                                            \
  X(gf_store_free, (int64_t store), (store))                                                                          \
  X(gf_store_port, (int64_t store), (store))                                                                          \
  X(gf_store_set, (int64_t store, const char* key, const void* data, int64_t n), (store, key, data, n))              \
  X(gf_store_get, (int64_t store, const char* key, int64_t timeout_ms, void* out, int64_t cap),                      \
    (store, key, timeout_ms, out, cap))                                                                               \
  X(gf_store_add, (int64_t store, const char* key, int64_t delta), (store, key, delta))                               \
  X(gf_store_check, (int64_t store, const char* key), (store, key))                                                   \
  /* process group */                                                                                                 \
  X(gf_gloo_connect,                                                                                                  \
    (int64_t store, int64_t rank, int64_t world, int64_t connect_ms, int64_t timeout_ms, const char* host),          \
    (store, rank, world, connect_ms, timeout_ms, host))                                                              \
  X(gf_pg_free, (int64_t pg), (pg))                                                                                   \
  X(gf_pg_abort, (int64_t pg), (pg))                                                                                  \
  X(gf_all_gather, (int64_t pg, int64_t out, int64_t in), (pg, out, in))                                              \
  X(gf_all_gather_list, (int64_t pg, const int64_t* outs, int64_t n, int64_t in), (pg, outs, n, in))                 \
  X(gf_reduce_scatter, (int64_t pg, int64_t out, int64_t in, int64_t op), (pg, out, in, op))                         \
  X(gf_all_reduce, (int64_t pg, int64_t t, int64_t op), (pg, t, op))                                                  \
  X(gf_broadcast, (int64_t pg, int64_t t, int64_t root), (pg, t, root))                                               \
  X(gf_send, (int64_t pg, int64_t t, int64_t dst, int64_t tag), (pg, t, dst, tag))                                    \
  X(gf_recv, (int64_t pg, int64_t t, int64_t src, int64_t tag), (pg, t, src, tag))                                    \
  X(gf_barrier, (int64_t pg), (pg))                                                                                   \
  X(gf_work_wait, (int64_t work, int64_t timeout_ms), (work, timeout_ms))                                             \
  X(gf_work_done, (int64_t work), (work))                                                                             \
  X(gf_work_free, (int64_t work), (work))

#define GF_DECLARE(name, params, args) __attribute__((visibility("default"))) gf_ret name params;
GF_API(GF_DECLARE)
#undef GF_DECLARE

// Frees an error and its message (memory of malloc).
__attribute__((visibility("default"))) void gf_error_free(gf_error* err);
// Frees a result buffer that gf_op_call allocated because the results did not fit.
__attribute__((visibility("default"))) void gf_buffer_free(int64_t* buffer);

#ifdef __cplusplus
}
#endif
#endif
