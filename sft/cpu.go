package sft

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// slowBF16 tells whether libtorch computes bf16 without instructions for it. Processors other than x86 are not judged.
func slowBF16() bool {
	return runtime.GOARCH == "amd64" && !cpu.X86.HasAMXBF16 && !cpu.X86.HasAVX512BF16
}
