// Package float converts between float32 and the 16-bit formats of model files: IEEE 754 binary16 (F16) and
// bfloat16 (BF16). Narrowing rounds to nearest, ties to even, as PyTorch does.
package float

import "math"

// F16 widens an IEEE 754 half. Every half, subnormals included, is exact in float32.
func F16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	em := uint32(h&0x7fff) << 13
	if em >= 0x7c00<<13 { // infinity or NaN: the exponent is all ones in both formats
		return math.Float32frombits(sign | 0x7f800000 | em)
	}
	// The exponent is biased by 15 here and by 127 there. Multiplying corrects it for subnormals too.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(em)*0x1p112))
}

// ToF16 narrows f to a half. Values beyond its range become infinite; a NaN stays a (quiet) NaN.
func ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x47800000: // 2^16 and above
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: adding 0.5 aligns the subnormal's last bit with float32's, and rounds
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b -= (127 - 15) << 23
	b += 0xfff + b>>13&1 // may carry into the exponent: the largest values round to infinity
	return sign | uint16(b>>13)
}

// BF16 widens a bfloat16.
func BF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToBF16 narrows f to bfloat16. Every NaN becomes 0x7fc0.
func ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fc0
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
