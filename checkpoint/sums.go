package checkpoint

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
)

// ErrDamaged is in the errors about files whose bytes are not those that were saved.
var ErrDamaged = errors.New("the checkpoint is damaged: restore it from a copy, or resume from an older one")

// blockSize is how many bytes of a file share a checksum. A rank that reads a part of a file checks the blocks around it.
const blockSize = 4 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC-32C of all bytes, as a manifest holds it.
func checksum(data []byte) string {
	var h hasher
	h.add(data)
	return h.text()
}

// hasher takes a file from beginning to end and computes the checksum of every block.
type hasher struct {
	sums []byte // of finished blocks, big-endian
	crc  uint32
	n    int // bytes in the block that is open
}

func (h *hasher) add(b []byte) {
	for len(b) > 0 {
		part := b[:min(len(b), blockSize-h.n)]
		h.crc = crc32.Update(h.crc, castagnoli, part)
		if h.n += len(part); h.n == blockSize {
			h.close()
		}
		b = b[len(part):]
	}
}

func (h *hasher) close() {
	h.sums = append(h.sums, byte(h.crc>>24), byte(h.crc>>16), byte(h.crc>>8), byte(h.crc))
	h.crc, h.n = 0, 0
}

// Write is add.
func (h *hasher) Write(b []byte) (int, error) {
	h.add(b)
	return len(b), nil
}

// text ends the file and gives eight hexadecimal digits for every block.
func (h *hasher) text() string {
	if h.n > 0 {
		h.close()
	}
	return hex.EncodeToString(h.sums)
}

// blocks is the number of checksums of a file.
func blocks(size int64) int64 { return (size + blockSize - 1) / blockSize }

// verifier checks the blocks of a file, each of them once. A nil verifier accepts everything: old checkpoints and those of
// other programs have no checksums.
type verifier struct {
	path string
	sums []byte
	done []atomic.Bool
}

func newVerifier(path, text string, size int64) (*verifier, error) {
	sums, err := hex.DecodeString(text)
	if err != nil || int64(len(sums)) != 4*blocks(size) {
		return nil, fmt.Errorf("%d checksums of %d blocks: %w", len(sums)/4, blocks(size), ErrDamaged)
	}
	return &verifier{path: path, sums: sums, done: make([]atomic.Bool, len(sums)/4)}, nil
}

// check compares the blocks that hold bytes lo to hi of the file.
func (v *verifier) check(whole []byte, lo, hi int64) error {
	if v == nil || lo >= hi {
		return nil
	}
	for i := lo / blockSize; i*blockSize < hi; i++ {
		if i >= int64(len(v.done)) {
			return fmt.Errorf("%s: bytes %d to %d lie beyond its checksums: %w", v.path, lo, hi, ErrDamaged)
		}
		if v.done[i].Load() {
			continue
		}
		from, to := i*blockSize, min((i+1)*blockSize, int64(len(whole)))
		s := v.sums[4*i:]
		want := uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
		if got := crc32.Checksum(whole[from:to], castagnoli); got != want {
			return fmt.Errorf("%s: bytes %d to %d have checksum %08x, %08x was saved: %w", v.path, from, to, got, want, ErrDamaged)
		}
		v.done[i].Store(true)
	}
	return nil
}
