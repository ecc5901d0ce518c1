package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

const (
	benchTensors = 8
	benchBytes   = 32 << 20 // of a tensor
)

func benchEntries() (list []Entry) {
	for i := range benchTensors {
		list = append(list, Whole(fmt.Sprintf("layers.%d.weight", i), torch.Randn(nil, torch.Float32, benchBytes/4096, 1024)))
	}
	return list
}

// BenchmarkSave writes 256 MiB from one rank; the case "blocks" writes as many bytes as dd would, in blocks of 4 MiB with a
// flush at the end, for what the disk can do.
func BenchmarkSave(b *testing.B) {
	entries := benchEntries()
	for name, format := range map[string]Format{"safetensors": Safetensors, "dcp": DCP} {
		b.Run(name, func(b *testing.B) {
			root := b.TempDir()
			b.SetBytes(benchTensors * benchBytes)
			for b.Loop() {
				_, err := Save(b.Context(), dist.NewSingle(), root, 1, Snapshot{Model: entries}, SaveOptions{Format: format})
				require.NoError(b, err)
			}
		})
	}
	b.Run("stall", func(b *testing.B) { // how long training stands still for a save in the background
		saver := &Saver{Group: dist.NewSingle(), Root: b.TempDir()}
		b.SetBytes(benchTensors * benchBytes)
		for b.Loop() {
			_, err := saver.Start(b.Context(), 1, Snapshot{Model: entries})
			require.NoError(b, err)
			b.StopTimer()
			_, err = saver.Wait(b.Context())
			require.NoError(b, err)
			b.StartTimer()
		}
	})
	b.Run("blocks", func(b *testing.B) {
		root, block := b.TempDir(), make([]byte, 4<<20)
		b.SetBytes(benchTensors * benchBytes)
		for i := 0; b.Loop(); i++ {
			path := filepath.Join(root, fmt.Sprint(i))
			f, err := os.Create(path)
			require.NoError(b, err)
			for range benchTensors * benchBytes / len(block) {
				_, err := f.Write(block)
				require.NoError(b, err)
			}
			require.NoError(b, f.Sync())
			require.NoError(b, f.Close())
			require.NoError(b, os.Remove(path))
		}
	})
}

// BenchmarkLoad reads 256 MiB that are in the system's cache, with checksums and without.
func BenchmarkLoad(b *testing.B) {
	entries := benchEntries()
	for name, format := range map[string]Format{"safetensors": Safetensors, "dcp": DCP} {
		for _, sums := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/checksums=%t", name, sums), func(b *testing.B) {
				dir, err := Save(b.Context(), dist.NewSingle(), b.TempDir(), 1, Snapshot{Model: entries}, SaveOptions{Format: format})
				require.NoError(b, err)
				b.SetBytes(benchTensors * benchBytes)
				for b.Loop() {
					c, err := Open(dir)
					require.NoError(b, err)
					if !sums {
						c.SkipChecksums()
					}
					require.NoError(b, c.Load(b.Context(), Model, entries))
					require.NoError(b, c.Close())
				}
			})
		}
	}
}
