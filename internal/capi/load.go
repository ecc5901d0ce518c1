package capi

/*
#include <stdlib.h>
#include "loader.h"
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

const libraryName = "libgofsdp.so"

// LoadError says where the library was looked for, and what to do.
type LoadError struct {
	Tried []string // "path: reason", in order
}

func (e *LoadError) Error() string {
	return "capi: " + libraryName + " could not be loaded; run `make build` (or `gofsdp setup`), or set GOFSDP_LIB\n  " +
		strings.Join(e.Tried, "\n  ")
}

// Load opens the library once; later calls return the first result. Everything else in this package needs it.
var Load = sync.OnceValue(load)

func load() error {
	quiet()
	var tried []string
	for _, path := range candidates() {
		if filepath.IsAbs(path) {
			if _, err := os.Stat(path); err != nil {
				tried = append(tried, path+": no such file")
				continue
			}
		}
		c := C.CString(path)
		msg := C.load_library(c)
		C.free(unsafe.Pointer(c))
		if msg != nil {
			tried = append(tried, path+": "+C.GoString(msg))
			C.free(unsafe.Pointer(msg))
			continue
		}
		version, err := result(C.load_init())
		if err != nil {
			return fmt.Errorf("capi: initialise %s: %w", path, err)
		}
		if version != C.GF_ABI_VERSION {
			return fmt.Errorf("capi: %s has ABI version %d, this program needs %d: run `make build`", path, version, C.GF_ABI_VERSION)
		}
		return installLowMemory()
	}
	return &LoadError{Tried: tried}
}

// quiet keeps c10d's log off standard error, unless somebody asked for it: it writes a C++ stack for every connection that
// times out, and what it has to say comes back as an error anyway.
func quiet() {
	if _, ok := os.LookupEnv("TORCH_CPP_LOG_LEVEL"); !ok {
		_ = os.Setenv("TORCH_CPP_LOG_LEVEL", "FATAL")
	}
}

// candidates lists the paths to try: GOFSDP_LIB alone if it is set, the program's own folder and the one above it, the
// source tree's build folder, the user's cache folder, and the system's search path.
func candidates() []string {
	if p := os.Getenv("GOFSDP_LIB"); p != "" {
		return []string{p}
	}
	var list []string
	if exe, err := os.Executable(); err == nil {
		dir := filepath.Dir(exe)
		list = append(list, filepath.Join(dir, libraryName), filepath.Join(filepath.Dir(dir), libraryName))
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		list = append(list, filepath.Join(filepath.Dir(file), "..", "..", "build", libraryName))
	}
	if cache := os.Getenv("GOFSDP_CACHE"); cache != "" {
		list = append(list, filepath.Join(cache, "lib", libraryName))
	} else if cache, err := os.UserCacheDir(); err == nil {
		list = append(list, filepath.Join(cache, "gofsdp", "lib", libraryName))
	}
	return append(list, libraryName)
}
