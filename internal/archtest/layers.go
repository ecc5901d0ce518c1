// Package archtest checks the shape of this repository: which package may import which, where cgo lives, how
// long a file may be, and that everything exported is documented. Its tests are the checks.
package archtest

import "strings"

// layers are the packages from the ground up. A package may import what is below it: an earlier layer, or an
// earlier entry of its own. An entry covers the folders below it too, unless they have an entry of their own;
// within an entry, Go itself forbids cycles.
var layers = []struct {
	name    string
	folders []string
}{
	{"helpers without an opinion", []string{"internal"}},
	{"the C ABI", []string{"internal/capi"}},
	{"tensors", []string{"torch", "torch/aten", "torch/nn", "torch/optim", "torch/amp"}},
	{"ranks", []string{"dist"}},
	{"sharding", []string{"fsdp"}},
	{"text", []string{"tokenizer", "chat", "data"}},
	{"files", []string{"modelio", "checkpoint"}},
	{"models", []string{"quant", "peft", "models"}},
	{"training", []string{"accelerate", "sft"}},
	{"other libraries' APIs", []string{"compat"}},
	{"test support", []string{"internal/ranktest"}},
	{"programs", []string{"cmd", "examples", "bench", "interop", "internal/archtest", "internal/opsgen"}},
}

// stdOnly are the folders that a service embeds: they bring no dependency along but golang.org/x.
var stdOnly = []string{"torch", "fsdp", "dist", "internal/capi", "internal/setup", "internal/errorfile"}

// cgoFolders are the only ones that may import "C".
var cgoFolders = []string{"internal/capi"}

// level places a folder: a number that grows upwards, and the entry that covers it. ok is false for a folder
// that nobody has placed.
func level(folder string) (n int, entry string, ok bool) {
	i := 0
	for _, layer := range layers {
		for _, f := range layer.folders {
			i++
			if under(folder, f) && len(f) > len(entry) {
				n, entry, ok = i, f, true
			}
		}
	}
	return n, entry, ok
}

// under reports whether folder is parent or below it.
func under(folder, parent string) bool {
	return folder == parent || strings.HasPrefix(folder, parent+"/")
}

func underAny(folder string, parents []string) bool {
	for _, p := range parents {
		if under(folder, p) {
			return true
		}
	}
	return false
}
