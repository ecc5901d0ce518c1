package quant

import "fmt"

// The 4-bit data types.
const (
	NF4 = "nf4" // codes at the quantiles of a normal distribution
	FP4 = "fp4" // one sign, two exponent, one mantissa bit
)

// Config says how weights are quantised. The zero value is NF4 in blocks of 64 with fp32 scales.
type Config struct {
	Type      string // NF4 or FP4; "" is NF4
	BlockSize int64  // weights that share a scale: a multiple of 32; 0 is 64
	// DoubleQuant keeps the scales in eight bits, with fp32 scales of their own for every 256, around their mean.
	DoubleQuant bool
}

func (c Config) withDefaults() (Config, error) {
	if c.Type == "" {
		c.Type = NF4
	}
	if c.BlockSize == 0 {
		c.BlockSize = 64
	}
	if c.Type != NF4 && c.Type != FP4 {
		return c, fmt.Errorf("quant: type %q is not known (known: %s, %s)", c.Type, NF4, FP4)
	}
	if c.BlockSize < 0 || c.BlockSize%32 != 0 {
		return c, fmt.Errorf("quant: block size %d is no multiple of 32", c.BlockSize)
	}
	return c, nil
}

// nestedBlock is the number of scales that share a scale of theirs.
const nestedBlock = 256
