package gguf

import (
	"encoding/binary"
	"math"

	"github.com/gofsdp/gofsdp/modelio/internal/float"
)

// The functions here turn whole blocks of src into dst; the caller has matched the lengths. Results are bit-equal to
// the reference, so every product that a sum follows is converted explicitly: the compiler must not fuse the two.
//
// In a block of 32, byte j of the packed nibbles holds element j (low nibble) and element j+16 (high nibble).

func halfAt(b []byte) float32 { return float.F16(binary.LittleEndian.Uint16(b)) }

func dequantF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = halfAt(src[2*i:])
	}
}

func dequantBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float.BF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// dequantQ4_0: scale, 16 bytes of nibbles; x = d*(q-8).
func dequantQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		y, q, d := (*[32]float32)(dst), (*[16]byte)(src[2:]), halfAt(src)
		for j, b := range q {
			y[j] = d * float32(int(b&15)-8)
			y[j+16] = d * float32(int(b>>4)-8)
		}
	}
}

// dequantQ4_1: scale, minimum, 16 bytes of nibbles; x = d*q + m.
func dequantQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		y, q, d, m := (*[32]float32)(dst), (*[16]byte)(src[4:]), halfAt(src), halfAt(src[2:])
		for j, b := range q {
			y[j] = float32(d*float32(b&15)) + m
			y[j+16] = float32(d*float32(b>>4)) + m
		}
	}
}

// dequantQ5_0: scale, 32 fifth bits, 16 bytes of nibbles; x = d*(q-16).
func dequantQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		y, q, d := (*[32]float32)(dst), (*[16]byte)(src[6:]), halfAt(src)
		high := binary.LittleEndian.Uint32(src[2:])
		for j, b := range q {
			y[j] = d * float32(int(uint32(b&15)|high>>j&1<<4)-16)
			y[j+16] = d * float32(int(uint32(b>>4)|high>>(j+16)&1<<4)-16)
		}
	}
}

// dequantQ5_1: scale, minimum, 32 fifth bits, 16 bytes of nibbles; x = d*q + m.
func dequantQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		y, q, d, m := (*[32]float32)(dst), (*[16]byte)(src[8:]), halfAt(src), halfAt(src[2:])
		high := binary.LittleEndian.Uint32(src[4:])
		for j, b := range q {
			y[j] = float32(d*float32(uint32(b&15)|high>>j&1<<4)) + m
			y[j+16] = float32(d*float32(uint32(b>>4)|high>>(j+16)&1<<4)) + m
		}
	}
}

// dequantQ8_0: scale, 32 signed bytes; x = d*q.
func dequantQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		y, q, d := (*[32]float32)(dst), (*[32]byte)(src[2:]), halfAt(src)
		for j, b := range q {
			y[j] = float32(int8(b)) * d
		}
	}
}
