package float

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

func TestF16ParityEveryValue(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want := float16.Frombits(h).Float32()
		got := F16(h)
		if got != got {
			require.True(t, want != want, "%#x", h)
			require.True(t, F16(ToF16(got)) != F16(ToF16(got)), "%#x", h)
			continue
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%#x", h)
		require.Equal(t, h, ToF16(got), "%#x", h)
	}
}

func TestToF16Parity(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		bits := r.Uint32()
		if r.IntN(2) == 0 { // half of the tries near the half's range, ties among them
			bits = bits&0x8ffff000 | uint32(0x30+r.IntN(0x18))<<24
		}
		f := math.Float32frombits(bits)
		if f != f {
			continue
		}
		require.Equal(t, float16.Fromfloat32(f).Bits(), ToF16(f), "%x", bits)
	}
}

func TestToBF16(t *testing.T) {
	for _, c := range []struct {
		in   uint32
		want uint16
	}{
		{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
		{0x7f7fffff, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0x80000000, 0x8000}, {0x00008001, 1},
	} {
		require.Equal(t, c.want, ToBF16(math.Float32frombits(c.in)), "%x", c.in)
	}
	for i := range 1 << 16 {
		if f := BF16(uint16(i)); f == f {
			require.Equal(t, uint16(i), ToBF16(f))
		}
	}
}
