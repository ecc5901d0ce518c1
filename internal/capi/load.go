package capi

/*
#include <stdlib.h>
#include "loader.h"
*/
import "C"

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
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
	return "capi: " + libraryName + " could not be loaded; run " + setupCommand() + ", or set GOFSDP_LIB\n  " +
		strings.Join(e.Tried, "\n  ")
}

// VersionError says that the library was built for another libtorch than the one that it would run with.
type VersionError struct {
	Library  string // libgofsdp.so
	Expected string // the libtorch that it was built for, such as 2.13.0
	Torch    string // the libtorch_cpu.so that is there
	Found    string // its version
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("capi: %s was built for libtorch %s, and found libtorch %s (%s): run %s to build it anew, "+
		"or set GOFSDP_IGNORE_TORCH_VERSION=1 to load it all the same", e.Library, e.Expected, e.Found, e.Torch, setupCommand())
}

// header declares the functions of the library.
//
//go:embed gofsdp.h
var header []byte

// abiOf is the number by which a library tells from which header it was built: the first 15 digits of its SHA-256.
func abiOf(header []byte) int64 {
	sum := sha256.Sum256(header)
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 4)
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
		if err := checkTorch(path); err != nil {
			if _, ok := err.(*VersionError); ok {
				return err
			}
			tried = append(tried, path+": "+err.Error())
			continue
		}
		c := C.CString(path)
		msg := C.load_library(c)
		C.free(unsafe.Pointer(c))
		if msg != nil {
			tried = append(tried, path+": "+C.GoString(msg))
			C.free(unsafe.Pointer(msg))
			continue
		}
		abi, err := result(C.load_init())
		if err != nil {
			return fmt.Errorf("capi: initialise %s: %w", path, err)
		}
		if abi != abiOf(header) {
			return fmt.Errorf("capi: %s was built from other sources than this program: run %s to build it anew", path, setupCommand())
		}
		if err := checkRunning(path); err != nil {
			return err
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
// source tree's build folder, the user's cache folder (first what was built for this version of the module), and the system's
// search path.
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
	cache := os.Getenv("GOFSDP_CACHE")
	if cache == "" {
		if dir, err := os.UserCacheDir(); err == nil {
			cache = filepath.Join(dir, "gofsdp")
		}
	}
	if cache != "" {
		if name := moduleName(); name != "" {
			list = append(list, filepath.Join(cache, "lib", name, libraryName))
		}
		list = append(list, filepath.Join(cache, "lib", libraryName))
	}
	return append(list, libraryName)
}
