// Declarations of loader.c.
#ifndef GOFSDP_LOADER_H
#define GOFSDP_LOADER_H
#include "gofsdp.h"

#define LOAD_DECLARE(name, params, args) gf_ret load_##name params;
GF_API(LOAD_DECLARE)
#undef LOAD_DECLARE

// Opens the library and resolves every function; returns NULL, or a message to free.
char* load_library(const char* path);
// Opens libtorch_cpu.so for good and writes the version that it tells, or 0; returns NULL, or a message to free.
char* load_torch(const char* path, uint64_t* version);
gf_ret load_init(void);
void load_error_free(gf_error* e);
void load_buffer_free(int64_t* b);
#endif
