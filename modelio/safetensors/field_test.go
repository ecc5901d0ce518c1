package safetensors

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Lengths of headers that the reference reader refuses.
func TestHeaderLengths(t *testing.T) {
	prefix := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), "{}"...) }
	for name, data := range map[string][]byte{
		"empty file": nil, "seven bytes": make([]byte, 7), "length 0": prefix(0), "longer than the file": prefix(3),
		"one over the limit": prefix(100_000_001), "2^63": prefix(1 << 63), "2^64-1": prefix(1<<64 - 1), "a zip": []byte("PK\x03\x04 and so on, and on"),
		"a pointer of git-lfs": []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"),
	} {
		_, err := Parse("f", data)
		var fault *FormatError
		require.ErrorAs(t, err, &fault, name)
		require.Equal(t, strings.Contains(name, "git-lfs"), strings.Contains(err.Error(), "Git LFS pointer"))
	}
	_, err := Parse("exact", prefix(2))
	require.NoError(t, err)
	_, err = Parse("spaces", append(binary.LittleEndian.AppendUint64(nil, 6), "{}    "...))
	require.NoError(t, err)
}

// Readers with a limit on what they read first have stumbled over headers of 100,000 bytes; counts and offsets over 4 GiB
// over 32-bit arithmetic.
func TestLargeHeadersAndFiles(t *testing.T) {
	for _, size := range []int{100_000, 100_001} {
		_, err := Parse("f", build(`{"__metadata__":{"a":"`+strings.Repeat("x", size-26)+`"}} `, nil))
		require.NoError(t, err)
	}
	for _, count := range []int{0, 1, 10_000} {
		var entries []string
		for i := range count {
			entries = append(entries, fmt.Sprintf(`"t%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, i, i, i+1))
		}
		f, err := Parse("f", build("{"+strings.Join(entries, ",")+"}", make([]byte, count)))
		require.NoError(t, err)
		require.Len(t, f.Names(), count)
	}
	const size = 5 << 30 // sparse: it takes no room on the disk
	path := filepath.Join(t.TempDir(), "large.safetensors")
	head := build(fmt.Sprintf(`{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},"b":{"dtype":"U8","shape":[3],"data_offsets":[%d,%d]}}`,
		size, size, size, size+3), nil)
	require.NoError(t, os.WriteFile(path, head, 0o600))
	require.NoError(t, os.Truncate(path, int64(len(head))+size+3))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{1, 2, 3}, int64(len(head))+size)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := f.Tensor("b")
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 3}, b.Data)
	require.Equal(t, int64(len(head))+size, f.Offset(b))
}
