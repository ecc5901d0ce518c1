//go:build cgo

// Resolves the functions of libgofsdp.so with dlsym and forwards to them. Nothing is linked: programs build, and
// tools run, on machines that have no libtorch. A function the library lacks is an error at its call.
#define _GNU_SOURCE
#include "loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void (*error_free)(gf_error*);
static void (*buffer_free)(int64_t*);

static gf_ret no_symbol(const char* name) {
  char text[160];
  snprintf(text, sizeof text, "libgofsdp.so has no function %s: build it again with `make build`", name);
  gf_error* e = malloc(sizeof *e);
  e->kind = GF_ERR_NO_SYMBOL;
  e->cookie = 0;
  e->message = strdup(text);
  return (gf_ret){0, e};
}

#define DEFINE(name, params, args)      \
  static gf_ret(*p_##name) params;      \
  gf_ret load_##name params {           \
    if (!p_##name) return no_symbol(#name); \
    return p_##name args;               \
  }
GF_API(DEFINE)
#undef DEFINE

char* load_library(const char* path) {
  void* lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) return strdup(dlerror());
#define RESOLVE(name, params, args) *(void**)&p_##name = dlsym(lib, #name);
  GF_API(RESOLVE)
#undef RESOLVE
  *(void**)&error_free = dlsym(lib, "gf_error_free");
  *(void**)&buffer_free = dlsym(lib, "gf_buffer_free");
  if (!p_gf_init || !error_free || !buffer_free) return strdup("not a gofsdp library: gf_init is missing");
  return NULL;
}

char* load_torch(const char* path, uint64_t* version) {
  void* lib = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (!lib) return strdup(dlerror());
  uint64_t (*abi_version)(void);
  *(void**)&abi_version = dlsym(lib, "aoti_torch_abi_version");
  *version = abi_version ? abi_version() : 0;
  return NULL;
}

void load_error_free(gf_error* e) {
  if (e->kind == GF_ERR_NO_SYMBOL) {
    free(e->message);
    free(e);
    return;
  }
  error_free(e);
}

void load_buffer_free(int64_t* b) { buffer_free(b); }

extern uint64_t gofsdpCall(uint64_t, int32_t, int64_t*, int64_t, int64_t*, int64_t);
extern void gofsdpRelease(uint64_t);

gf_ret load_init(void) {
  static const gf_callbacks callbacks = {gofsdpCall, gofsdpRelease};
  return load_gf_init(&callbacks);
}
