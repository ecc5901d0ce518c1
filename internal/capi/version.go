package capi

/*
#include <stdlib.h>
#include "loader.h"
*/
import "C"

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"
)

// Note [Versions of libtorch]
// libgofsdp.so calls C++, whose classes change from one minor release of libtorch to the next. Which libtorch it meets is up
// to the system's loader: somebody may have upgraded the Python package that it was built against, or set LD_LIBRARY_PATH.
// Then it fails with the name of a mangled symbol, or loads and crashes later. So load looks first, without running any code
// of the library: the file tells its version of libtorch in a section (csrc/version.cc) and where it searches (RUNPATH).
// libtorch is opened from there, says its own version, and stays open: the library is then bound to the one that was checked.

// ignoreVersionEnv lets a library load with a libtorch of another version; internal/setup has the same name.
const ignoreVersionEnv = "GOFSDP_IGNORE_TORCH_VERSION"

const torchLibrary = "libtorch_cpu.so"

// needs is what the file of a library tells about the libtorch that it wants.
type needs struct {
	version string   // such as 2.13.0; "" where the file does not tell
	folders []string // where the system's loader searches first, in its order
}

// readNeeds reads the file at path. A file that is no library is not its affair: dlopen will say so.
func readNeeds(path string) (needs, error) {
	file, err := elf.Open(path)
	if err != nil {
		return needs{}, err
	}
	defer file.Close()
	var n needs
	if section := file.Section(".gofsdp.torch"); section != nil {
		data, err := section.Data()
		if err != nil {
			return needs{}, err
		}
		n.version, _, _ = strings.Cut(string(data), "\x00")
	}
	n.folders = append(n.folders, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	origin := filepath.Dir(path)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		origin = filepath.Dir(real)
	}
	runpath, err := file.DynString(elf.DT_RUNPATH)
	if err != nil {
		return needs{}, err
	}
	for _, list := range runpath {
		for _, folder := range filepath.SplitList(list) {
			n.folders = append(n.folders, strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(folder))
		}
	}
	return n, nil
}

// checkTorch opens the libtorch that the library at path will meet, and compares its version with the wanted one. The result
// is nil also where there is no telling; checkRunning follows.
func checkTorch(path string) error {
	n, err := readNeeds(path)
	if err != nil || n.version == "" {
		return nil
	}
	for _, folder := range n.folders {
		torch := filepath.Join(folder, torchLibrary)
		if _, err := os.Stat(torch); err != nil {
			continue
		}
		c := C.CString(torch)
		defer C.free(unsafe.Pointer(c))
		var found C.uint64_t
		if msg := C.load_torch(c, &found); msg != nil {
			defer C.free(unsafe.Pointer(msg))
			return fmt.Errorf("built for libtorch %s: %s", n.version, C.GoString(msg))
		}
		return compareVersion(path, n.version, torch, abiVersion(uint64(found)))
	}
	return nil
}

// checkRunning compares versions once more after the library was loaded by a name that the system looked up.
func checkRunning(path string) error {
	text, err := Versions()
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(text, "\n")
	built, running, ok := strings.Cut(strings.TrimPrefix(first, "built "), ", running ")
	if !ok {
		return nil // a library from before it told
	}
	return compareVersion(path, built, torchLibrary, running)
}

// abiVersion spells the number that aoti_torch_abi_version returns; 0 is a libtorch without that function.
func abiVersion(v uint64) string {
	if v == 0 {
		return "of an unknown version"
	}
	return fmt.Sprintf("%d.%d.%d", v>>56&0xff, v>>48&0xff, v>>40&0xff)
}

// compareVersion returns a *VersionError unless both are of one minor release or the environment says not to mind.
func compareVersion(library, expected, torch, found string) error {
	line := func(version string) string { return version[:max(strings.LastIndexByte(version, '.'), 0)] }
	if line(expected) == line(found) || os.Getenv(ignoreVersionEnv) == "1" {
		return nil
	}
	return &VersionError{Library: library, Expected: expected, Torch: torch, Found: found}
}
