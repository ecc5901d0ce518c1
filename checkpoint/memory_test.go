package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/torch"
)

// A synthetic model of 4 GB: a table of 512 MiB and 56 layers of 64 MiB.
const (
	syntheticLayers = 56
	syntheticRow    = 4096 // bytes: 1024 fp32
	tableRows       = 512 << 20 / syntheticRow
	layerRows       = 64 << 20 / syntheticRow
)

type syntheticTensor struct {
	name string
	rows int64
}

func synthetic(shrink int64) []syntheticTensor {
	list := []syntheticTensor{{"embed.weight", tableRows / shrink}}
	for i := range syntheticLayers {
		list = append(list, syntheticTensor{fmt.Sprintf("layers.%d.weight", i), layerRows / shrink})
	}
	return list
}

// writeSynthetic makes a checkpoint of two ranks whose files are sparse: zeros that take no room on the disk.
func writeSynthetic(t *testing.T, dir string, shrink int64) {
	m := Manifest{FormatVersion: 1, Step: 1, WorldSize: 2}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "model"), 0o755))
	for rank := range 2 {
		header, info := map[string]any{}, map[string]offsets{}
		at := int64(0)
		for _, s := range synthetic(shrink) {
			lo, hi := fsdp.ShardRows(s.rows, rank, 2)
			size := (hi - lo) * syntheticRow
			header[s.name] = map[string]any{"dtype": "F32", "shape": []int64{hi - lo, syntheticRow / 4}, "data_offsets": []int64{at, at + size}}
			info[s.name] = offsets{[]int64{lo, 0}}
			at += size
		}
		text, err := json.Marshal(info)
		require.NoError(t, err)
		header["__metadata__"] = map[string]string{"format": "pt", "DCP_VERSION": "1.0", shardingKey: string(text)}
		text, err = json.Marshal(header)
		require.NoError(t, err)
		f := File{Path: fmt.Sprintf("model/shard-%05d-model-00001-of-00001.safetensors", rank+1), Kind: Model, Rank: rank,
			Size: 8 + int64(len(text)) + at, Tensors: len(info)}
		path := filepath.Join(dir, f.Path)
		require.NoError(t, os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o600))
		require.NoError(t, os.Truncate(path, f.Size))
		m.Files = append(m.Files, f)
	}
	text, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, manifestName), text, 0o600))
}

// loadSynthetic is what a process of the test does: rank 0 of two, or the only one of another number, loads its rows, and
// prints the anonymous memory before, and at most while it does.
func loadSynthetic(dir string) error {
	shrink, err := strconv.ParseInt(filepath.Base(filepath.Dir(dir)), 10, 64)
	if err != nil {
		return err
	}
	torch.Zeros(torch.Float32, 1).Free() // what libtorch takes for itself
	before := rssAnon()
	peak, stop, stopped := before, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			peak = max(peak, rssAnon())
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	c, err := Open(dir)
	if err != nil {
		return err
	}
	var list []Entry
	for _, s := range synthetic(shrink) {
		lo, hi := fsdp.ShardRows(s.rows, 1, 3) // across the edge between the ranks that saved
		list = append(list, Entry{Name: s.name, Shape: []int64{s.rows, syntheticRow / 4}, Lo: lo, Hi: hi,
			Tensor: torch.Empty(torch.Float32, hi-lo, syntheticRow/4)})
	}
	if err := c.Load(context.Background(), Model, list); err != nil {
		return err
	}
	close(stop)
	<-stopped
	fmt.Println(before, peak)
	return nil
}

// rssAnon is the process's anonymous memory in bytes: what it needs, without the pages of mapped files.
func rssAnon() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// Loading needs a rank's own rows and little more, whoever saved them. With GOFSDP_LONG=1 the checkpoint has 4 GB.
func TestMemoryOfLoading(t *testing.T) {
	shrink := int64(64)
	if os.Getenv("GOFSDP_LONG") == "1" {
		shrink = 1
	}
	dir := filepath.Join(t.TempDir(), strconv.FormatInt(shrink, 10), "checkpoint-1")
	writeSynthetic(t, dir, shrink)
	out, err := child(t, "load synthetic", dir).Output()
	require.NoError(t, err, "%s", out)
	var before, peak, shard int64
	_, err = fmt.Sscan(string(out), &before, &peak)
	require.NoError(t, err)
	if before == 0 {
		t.Log("this system does not tell a process's anonymous memory: nothing is measured")
		return
	}
	for _, s := range synthetic(shrink) {
		lo, hi := fsdp.ShardRows(s.rows, 1, 3)
		shard += (hi - lo) * syntheticRow
	}
	largest := tableRows / shrink * syntheticRow
	t.Logf("own rows %d MiB, peak %d MiB more than before", shard>>20, (peak-before)>>20)
	require.LessOrEqual(t, peak-before, shard+2*largest)
	require.GreaterOrEqual(t, peak-before, shard*9/10, "nothing was loaded")
}
