package llama

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/torch"
)

// rope holds the inverse frequencies of the rotary embedding, half the head dimension.
type rope struct{ inverse []float32 }

// newRope computes the frequencies as transformers does: in fp32, operation by operation, since a difference in the last
// bit grows with the position.
func newRope(cfg *modelio.Config) (rope, error) {
	p := cfg.Rope
	switch p.Type {
	case "default", "linear", "llama3":
	default:
		return rope{}, fmt.Errorf("llama: rope type %q is not supported (supported: default, linear, llama3)", p.Type)
	}
	var r rope
	err := torch.Try(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		exponent := s.Own(torch.Arange(torch.Float32, 0, int64(cfg.HeadDim/2))).MulScalar(2).DivScalar(float64(cfg.HeadDim))
		r.inverse = torch.Slice[float32](torch.CallOne("aten::reciprocal", torch.CallOne("aten::pow.Scalar", p.Theta, exponent)))
	})
	if err != nil {
		return rope{}, fmt.Errorf("llama: rotary frequencies: %w", err)
	}
	for i, f := range r.inverse {
		switch p.Type {
		case "linear":
			r.inverse[i] = f / float32(p.Factor)
		case "llama3":
			r.inverse[i] = llama3Frequency(p, f)
		}
	}
	return r, nil
}

// llama3Frequency stretches long wavelengths by the factor, leaves short ones, and blends in between (Llama 3.1).
func llama3Frequency(p modelio.Rope, f float32) float32 {
	original, factor := float32(p.OriginalMaxPositionEmbeddings), float32(p.Factor)
	low := float32(p.LowFreqFactor)
	wavelength := (1 / f) * float32(2*math.Pi)
	switch {
	case wavelength > float32(float64(p.OriginalMaxPositionEmbeddings)/p.LowFreqFactor):
		return f / factor
	case wavelength < float32(float64(p.OriginalMaxPositionEmbeddings)/p.HighFreqFactor):
		return f
	}
	smooth := (float32((1/wavelength)*original) - low) / float32(p.HighFreqFactor-p.LowFreqFactor)
	slow := float32((1 - smooth) * f)
	return float32(slow/factor) + float32(smooth*f)
}

// tables gives cos and sin of the positions' angles, fp32 (tokens, head dim) where all rows have the same positions, else
// (batch, tokens, head dim).
func (r rope) tables(s *torch.Scope, in Input, cu []int32) (cos, sin *torch.Tensor) {
	device := in.IDs.Device()
	inverse := s.Own(torch.FromSlice(r.inverse)).ToDevice(device)
	angles := positions(s, in, cu).ToDevice(device).To(torch.Float32).Unsqueeze(-1).Mul(inverse)
	angles = torch.Cat(-1, angles, angles)
	return angles.Cos(), angles.Sin()
}

// positions gives int64 (tokens) or (batch, tokens).
func positions(s *torch.Scope, in Input, cu []int32) *torch.Tensor {
	shape := in.IDs.Shape()
	switch {
	case in.Positions != nil:
		return in.Positions
	case cu != nil:
		list := make([]int64, 0, shape[0]*shape[1])
		for i := 1; i < len(cu); i++ {
			for p := range cu[i] - cu[i-1] {
				list = append(list, int64(p))
			}
		}
		return s.Own(torch.FromSlice(list, shape...))
	}
	first := in.cache.length()
	return s.Own(torch.Arange(torch.Int64, first, first+shape[1]))
}
