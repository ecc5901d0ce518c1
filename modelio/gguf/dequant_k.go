package gguf

// The K types hold 256 elements in a block, cut into sub-blocks whose scales are quantised too.

// scaleMin unpacks the 6-bit scale and minimum of sub-block j (of 8) from the 12 bytes that Q4_K and Q5_K share. The
// first four pairs fill the low six bits of bytes 0..7; the others are split between bytes 8..11 (low four bits) and
// the top two bits of bytes 0..7.
func scaleMin(p *[12]byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(p[j] & 63), float32(p[j+4] & 63)
	}
	return float32(p[j+4]&15 | p[j-4]>>6<<4), float32(p[j+4]>>4 | p[j]>>6<<4)
}

// dequantQ4_K: scale, scale of minima, 12 bytes of sub-scales, 128 bytes of nibbles; x = d*sc*q - dmin*m. Sub-blocks
// of 32 come in pairs: the low nibbles of 32 bytes, then their high nibbles.
func dequantQ4_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		d, dmin, scales := halfAt(src), halfAt(src[2:]), (*[12]byte)(src[4:])
		for pair := range 4 {
			q, y := (*[32]byte)(src[16+32*pair:]), (*[64]float32)(dst[64*pair:])
			sc, m := scaleMin(scales, 2*pair)
			d1, m1 := d*sc, float32(dmin*m)
			sc, m = scaleMin(scales, 2*pair+1)
			d2, m2 := d*sc, float32(dmin*m)
			for j, b := range q {
				y[j] = float32(d1*float32(b&15)) - m1
				y[j+32] = float32(d2*float32(b>>4)) - m2
			}
		}
	}
}

// dequantQ5_K is Q4_K with 32 bytes of fifth bits before the nibbles: bit s of byte j belongs to element j of
// sub-block s.
func dequantQ5_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		d, dmin, scales := halfAt(src), halfAt(src[2:]), (*[12]byte)(src[4:])
		high := (*[32]byte)(src[16:])
		for pair := range 4 {
			q, y := (*[32]byte)(src[48+32*pair:]), (*[64]float32)(dst[64*pair:])
			sc, m := scaleMin(scales, 2*pair)
			d1, m1 := d*sc, float32(dmin*m)
			sc, m = scaleMin(scales, 2*pair+1)
			d2, m2 := d*sc, float32(dmin*m)
			for j, b := range q {
				h := high[j] >> (2 * pair)
				y[j] = float32(d1*float32(b&15|h&1<<4)) - m1
				y[j+32] = float32(d2*float32(b>>4|h>>1&1<<4)) - m2
			}
		}
	}
}

// dequantQ6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed sub-scales, scale; x = d*sc*(q-32).
// Each half of the block takes 64 bytes of nibbles and 32 of bit pairs: four runs of 32 elements, whose scales change
// every 16.
func dequantQ6_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[210:] {
		d := halfAt(src[208:])
		for half := range 2 {
			low, high := (*[64]byte)(src[64*half:]), (*[32]byte)(src[128+32*half:])
			y := (*[128]float32)(dst[128*half:])
			var sc [8]float32
			for j, b := range src[192+8*half : 200+8*half] {
				sc[j] = d * float32(int8(b))
			}
			for j, h := range high {
				s := j >> 4
				y[j] = sc[s] * float32(int(low[j]&15|h&3<<4)-32)
				y[j+32] = sc[s+2] * float32(int(low[j+32]&15|h>>2&3<<4)-32)
				y[j+64] = sc[s+4] * float32(int(low[j]>>4|h>>4&3<<4)-32)
				y[j+96] = sc[s+6] * float32(int(low[j+32]>>4|h>>6<<4)-32)
			}
		}
	}
}
