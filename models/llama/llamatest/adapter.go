package llamatest

import (
	"testing"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/stretchr/testify/require"
)

// AdapterDistance is how far an adapter is from another one: the worst tensor's figures.
type AdapterDistance struct {
	Max  float64 // largest |Δ| of an element
	Mean float64 // mean |Δ| of a tensor, as a part of the mean way that training moved it
}

// RequireSmolAdapter compares an adapter of SmolLM2 after the 20 golden steps, precision "fp32" or "nf4", with the run in
// fp64 and with the run in fp32 of the reference.
//
// Adam divides by the root of the second moment, so that an element whose gradient is near 0 goes where rounding sends it:
// the reference in fp32 is up to 1.9e-4 (of steps that sum to 2e-3) from its own run in fp64, and on an AVX-512 machine
// it is 1.3e-4 from itself on AVX2. So the run in fp64 decides, and the one in fp32 must be the worse approximation of it.
func RequireSmolAdapter(t testing.TB, precision string, got func(name string) *torch.Tensor) {
	t.Helper()
	exact := Open(t, "smollm2_train", "adapter_after20_fp64_"+precision+".safetensors")
	reference := Open(t, "smollm2_train", "adapter_after20_single_"+precision+".safetensors")
	start := Open(t, "smollm2_train", "lora_A_init.safetensors")
	require.Len(t, exact.Names(), 42)
	require.Equal(t, exact.Names(), reference.Names())
	var toExact, toReference, theirs AdapterDistance
	for _, name := range exact.Names() {
		before := exact.Get(name).ZerosLike() // B starts from zero
		if start.Has(name) {
			before = start.Get(name)
		}
		moved := MeanDiff(exact.Get(name), before)
		measure := func(into *AdapterDistance, a, b *torch.Tensor) {
			most, _ := MaxDiff(a, b)
			into.Max, into.Mean = max(into.Max, most), max(into.Mean, MeanDiff(a, b)/moved)
		}
		measure(&toExact, got(name), exact.Get(name))
		measure(&toReference, got(name), reference.Get(name))
		measure(&theirs, reference.Get(name), exact.Get(name))
	}
	t.Logf("adapter after 20 steps: from fp64 %.2g (mean %.2g of the way moved), from the fp32 reference %.2g (%.2g); the reference is %.2g (%.2g) from fp64",
		toExact.Max, toExact.Mean, toReference.Max, toReference.Mean, theirs.Max, theirs.Mean)
	require.LessOrEqual(t, toExact.Mean, 2e-4)
	require.LessOrEqual(t, toReference.Mean, 0.005)
	require.LessOrEqual(t, toExact.Max, 0.2*theirs.Max)
}

// MeanDiff is the mean of |a − b|.
func MeanDiff(a, b *torch.Tensor) (diff float64) {
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		diff = s.Own(a.In(nil)).To(torch.Float64).Sub(s.Own(b.In(nil)).To(torch.Float64)).Abs().Mean().Item()
	})
	return diff
}
