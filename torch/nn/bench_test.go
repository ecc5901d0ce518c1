package nn

import (
	"testing"

	"github.com/gofsdp/gofsdp/torch"
)

// BenchmarkRun is the cost of a layer call that computes nothing.
func BenchmarkRun(b *testing.B) {
	s := torch.NewScope(nil)
	defer s.Close()
	l := &identityLayer{}
	x := s.Own(torch.Ones(torch.Float32, 1))
	b.ReportAllocs()
	for range b.N {
		Run(l, &Call{Scope: s}, x).Free()
	}
}

// BenchmarkCheckpoint compares a forward and a backward of four layers with and without activation checkpointing.
func BenchmarkCheckpoint(b *testing.B) {
	for _, size := range []int64{8, 256} {
		layers := make([]*block, 4)
		for i := range layers {
			layers[i] = newBlock(size, int64(i))
		}
		for _, on := range []bool{false, true} {
			name := map[bool]string{false: "plain", true: "checkpoint"}[on]
			b.Run(name+map[int64]string{8: "/small", 256: "/large"}[size], func(b *testing.B) {
				for _, l := range layers {
					l.SetCheckpoint(on)
				}
				b.ReportAllocs()
				for range b.N {
					s := torch.NewScope(nil)
					x := s.Own(torch.Ones(torch.Float64, size, size)).MulScalar(0.01)
					for _, l := range layers {
						x = Run(l, &Call{Scope: s, Training: true}, x)
					}
					x.Sum().Backward()
					s.Close()
				}
			})
		}
	}
}
