package aten_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/capi"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
)

// One product of one-element tensors, by each way there is. The C++ row is at::mul, called directly in this process.
// Every row frees its results.
func BenchmarkMul(b *testing.B) {
	s := torch.NewScope(nil)
	defer s.Close()
	x := s.Own(torch.Ones(torch.Float32, 1))
	runs := []struct {
		name string
		f    func(x *torch.Tensor)
	}{
		{"Method", func(x *torch.Tensor) { x.Mul(x) }},
		{"Aten", func(x *torch.Tensor) { aten.MulTensor(x, x) }},
		{"AtenOut", func(x *torch.Tensor) { aten.MulOut(x, x, x) }},
		{"AtenOptions", func(x *torch.Tensor) { aten.AddTensor(x, x, aten.AddOptions{Alpha: 2}) }},
		{"Scalar", func(x *torch.Tensor) { x.MulScalar(1.25) }},
		{"Call", func(x *torch.Tensor) { torch.Call("aten::mul.Tensor", x, x) }},
	}
	for _, r := range runs {
		b.Run(r.name, func(b *testing.B) {
			b.ReportAllocs()
			const step = 100
			for done := 0; done < b.N; done += step {
				s := torch.NewScope(s)
				y := x.In(s)
				for range min(step, b.N-done) {
					r.f(y)
				}
				s.Close()
			}
		})
	}
	b.Run("C++", func(b *testing.B) {
		x.WithHandle(func(h uintptr) {
			require.NoError(b, capi.TestMul(capi.Handle(h), capi.Handle(h), b.N))
		})
	})
}
