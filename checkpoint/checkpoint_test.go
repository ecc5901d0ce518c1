package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/torch"
)

// tensor is a whole tensor that tests cut into rows.
type tensor struct {
	name  string
	dtype torch.DType
	shape []int64
}

var (
	modelTensors = []tensor{
		{"embed.weight", torch.BFloat16, []int64{7, 3}},
		{"layers.0.bias", torch.Float32, []int64{1}},
		{"layers.0.weight", torch.Float32, []int64{5, 2, 2}},
		{"layers.1.codes", torch.Uint8, []int64{11, 1}},
		{"layers.1.empty", torch.Float16, []int64{0, 4}},
		{"layers.1.mask", torch.Bool, []int64{2, 2}},
		{"scale", torch.Float64, nil},
	}
	optimizerTensors = []tensor{
		{"layers.0.weight.step", torch.Float32, nil},
		{"layers.0.weight.exp_avg", torch.Float32, []int64{5, 2, 2}},
		{"layers.0.weight.exp_avg_sq", torch.Float32, []int64{5, 2, 2}},
	}
)

// values are the bytes of rows lo to hi of t; they depend on the step, and every row is different.
func (t tensor) values(step int, lo, hi int64) []byte {
	row := t.dtype.Size()
	for i, d := range t.shape {
		if i > 0 {
			row *= d
		}
	}
	b := make([]byte, (hi-lo)*row)
	for i := range b {
		b[i] = byte(int64(i) + lo*row + int64(len(t.name)+step))
		if t.dtype == torch.Bool {
			b[i] &= 1
		}
	}
	return b
}

// cut says which rows a rank holds.
type cut func(rows int64, rank, size int) (lo, hi int64)

// lastOnly gives all rows to the last rank.
func lastOnly(rows int64, rank, size int) (lo, hi int64) {
	if rank == size-1 {
		return 0, rows
	}
	return 0, 0
}

// backwards gives the first rows to the last rank, and the middle more than the ends.
func backwards(rows int64, rank, size int) (lo, hi int64) {
	edge := func(k int) int64 { return rows * int64(k*k) / int64(size*size) }
	back := size - 1 - rank
	return edge(back), edge(back + 1)
}

func replicated(rows int64, _, _ int) (lo, hi int64) { return 0, rows }

// entries makes one rank's entries; filled ones hold the values of step, others zeros.
func entries(list []tensor, c cut, g dist.Group, step int, filled bool) []Entry {
	var out []Entry
	for _, t := range list {
		lo, hi := c(rowsOf(t.shape), g.Rank(), g.Size())
		if t.shape == nil {
			lo, hi = 0, 1
		}
		shape := slices.Clone(t.shape)
		if len(shape) > 0 {
			shape[0] = hi - lo
		}
		data := t.values(step, lo, hi)
		if !filled {
			data = make([]byte, len(data))
		}
		out = append(out, Entry{Name: t.name, Tensor: torch.FromBytes(t.dtype, data, shape...), Shape: t.shape, Lo: lo, Hi: hi})
	}
	return out
}

func snapshot(c cut, g dist.Group, step int) Snapshot {
	return Snapshot{
		Model:     entries(modelTensors, c, g, step, true),
		Optimizer: entries(optimizerTensors, c, g, step, true),
		RankState: []Entry{Whole("rng", torch.FromSlice([]int64{int64(g.Rank()), int64(step)}))},
		Trainer:   trainer{Step: step, Loss: []float64{0.5}},
	}
}

type trainer struct {
	Step int
	Loss []float64
}

func same(list []tensor, got []Entry, step int) error {
	for i, t := range list {
		if want := t.values(step, got[i].Lo, got[i].Hi); !bytes.Equal(want, got[i].Tensor.Bytes()) {
			return fmt.Errorf("%s rows %d to %d: %v, want %v", t.name, got[i].Lo, got[i].Hi, got[i].Tensor.Bytes(), want)
		}
	}
	return nil
}

// saveAt saves from size goroutine ranks.
func saveAt(t *testing.T, root string, step, size int, c cut, o SaveOptions) string {
	t.Helper()
	ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
		dir, err := Save(ctx, g, root, step, snapshot(c, g, step), o)
		if err == nil && dir != filepath.Join(root, folderName(step)) {
			err = fmt.Errorf("saved to %s", dir)
		}
		return err
	})
	return filepath.Join(root, folderName(step))
}

// loadAt loads into size goroutine ranks and compares every byte.
func loadAt(t *testing.T, dir string, step, size int, c cut) {
	t.Helper()
	ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
		return loadRank(ctx, g, dir, step, c)
	})
}

func loadRank(ctx context.Context, g dist.Group, dir string, step int, cut cut) error {
	c, err := Open(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	model := entries(modelTensors, cut, g, step, false)
	optimizer := entries(optimizerTensors, cut, g, step, false)
	if err := errors.Join(c.Load(ctx, Model, model), c.Load(ctx, Optimizer, optimizer)); err != nil {
		return err
	}
	var state trainer
	if err := c.ReadTrainer(&state); err != nil {
		return err
	}
	if state.Step != step || state.Loss[0] != 0.5 || c.Info().Step != step {
		return fmt.Errorf("trainer state %v, manifest %v", state, c.Info())
	}
	rng := torch.Zeros(torch.Int64, 2)
	err = c.LoadRankState(ctx, g.Rank(), g.Size(), []Entry{Whole("rng", rng)})
	switch got := torch.Slice[int64](rng); {
	case g.Size() != c.Info().WorldSize:
		if !errors.Is(err, ErrWorldSize) {
			return fmt.Errorf("rank state at another number of ranks: %v", err)
		}
	case err != nil:
		return err
	case got[0] != int64(g.Rank()) || got[1] != int64(step):
		return fmt.Errorf("rank state %v", got)
	}
	return errors.Join(same(modelTensors, model, step), same(optimizerTensors, optimizer, step))
}

func TestParityAfterResharding(t *testing.T) {
	cuts := []struct {
		name string
		cut  cut
	}{{"chunks", fsdp.ShardRows}, {"last rank", lastOnly}, {"backwards", backwards}, {"replicated", replicated}}
	for _, save := range cuts {
		for _, size := range []int{1, 2, 3} {
			dir := saveAt(t, t.TempDir(), 4, size, save.cut, SaveOptions{})
			for _, later := range []int{1, 2, 3} {
				t.Run(fmt.Sprintf("%s at %d to %d", save.name, size, later), func(t *testing.T) {
					ranktest.Run(t, later, func(ctx context.Context, g dist.Group) error {
						for _, load := range cuts {
							if err := loadRank(ctx, g, dir, 4, load.cut); err != nil {
								return fmt.Errorf("%s: %w", load.name, err)
							}
						}
						return nil
					})
				})
			}
		}
	}
}

func TestFilesOnDisk(t *testing.T) {
	root := t.TempDir()
	dir := saveAt(t, root, 12, 3, fsdp.ShardRows, SaveOptions{})
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	m := c.Info()
	require.Equal(t, 3, m.WorldSize)
	require.Equal(t, 12, m.Step)
	require.Equal(t, File{Path: "model/shard-00001-model-00001-of-00001.safetensors", Kind: Model, Size: m.Files[0].Size, Tensors: 7,
		CRC32C: m.Files[0].CRC32C}, m.Files[0])
	require.Len(t, m.Files, 3+3+3+1)
	for _, f := range m.Files {
		require.FileExists(t, filepath.Join(dir, f.Path))
	}
	// Five rows over three ranks are 2, 2 and 1; a single row and scalars are on the first rank.
	second, err := safetensors.Open(filepath.Join(dir, "model/shard-00002-model-00001-of-00001.safetensors"))
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, []safetensors.KV{{Key: "format", Value: "pt"}, {Key: "DCP_VERSION", Value: "1.0"}, {Key: "DCP_SHARDING_INFO",
		Value: `{"embed.weight":{"saved_offsets":[3,0]},"layers.0.weight":{"saved_offsets":[2,0,0]},"layers.1.codes":{"saved_offsets":[4,0]},"layers.1.mask":{"saved_offsets":[1,0]}}`}},
		second.Metadata())
	require.False(t, second.Has("scale"))
	list, err := c.Tensors(Model)
	require.NoError(t, err)
	require.Len(t, list, len(modelTensors))
	for _, want := range modelTensors {
		require.True(t, slices.ContainsFunc(list, func(i TensorInfo) bool {
			return i.Name == want.name && i.DType == want.dtype && slices.Equal(i.Shape, want.shape)
		}), want.name)
	}
	names, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, names, 1, "nothing temporary is left")
}

func TestSaveOnlyModel(t *testing.T) {
	ctx, g := t.Context(), dist.NewSingle()
	dir, err := Save(ctx, g, filepath.Join(t.TempDir(), "new", "root"), 0, Snapshot{Model: entries(modelTensors, replicated, g, 1, true)}, SaveOptions{})
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(dir, "optimizer"))
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.ErrorIs(t, c.ReadTrainer(new(trainer)), os.ErrNotExist)
	require.NoError(t, c.Load(ctx, Optimizer, nil))
	require.NoError(t, c.LoadRankState(ctx, 0, 1, nil))
	require.ErrorContains(t, c.Load(ctx, Optimizer, []Entry{Whole("x", torch.Zeros(torch.Float32, 1))}), `tensor "x" is missing`)
	got := entries(modelTensors, replicated, g, 1, false)
	require.NoError(t, c.Load(ctx, Model, got))
	require.NoError(t, same(modelTensors, got, 1))
}

func TestLoadIntoStridedAndTrainedTensors(t *testing.T) {
	ctx, g := t.Context(), dist.NewSingle()
	source := torch.Randn(nil, torch.Float32, 6, 4)
	strided := torch.Randn(nil, torch.Float32, 4, 6).Transpose(0, 1)
	dir, err := Save(ctx, g, t.TempDir(), 1, Snapshot{Model: []Entry{Whole("a", source), Whole("b", strided)}}, SaveOptions{})
	require.NoError(t, err)
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	leaf := torch.Zeros(torch.Float32, 6, 4)
	leaf.SetRequiresGrad(true)
	other := torch.Zeros(torch.Float32, 4, 6).Transpose(0, 1)
	require.NoError(t, c.Load(ctx, Model, []Entry{Whole("a", leaf), Whole("b", other)}))
	require.Equal(t, source.Bytes(), leaf.Bytes())
	require.Equal(t, strided.Bytes(), other.Bytes())
	require.True(t, leaf.RequiresGrad())
}

func TestLoadRefuses(t *testing.T) {
	root := t.TempDir()
	dir := saveAt(t, root, 1, 2, fsdp.ShardRows, SaveOptions{})
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	g := dist.NewSingle()
	for _, k := range []struct {
		want string
		edit func(list []Entry) []Entry
	}{
		{`tensor "more" is missing: no model file holds it`, func(l []Entry) []Entry { return append(l, Whole("more", torch.Zeros(torch.Float32, 1))) }},
		{`tensor "embed.weight" of ` + dir + `/model/shard-00001-model-00001-of-00001.safetensors is unexpected`, func(l []Entry) []Entry { return l[1:] }},
		{`tensor "scale" is F32[1] here, F64[] in ` + dir + `/model/shard-00001`, func(l []Entry) []Entry { l[6] = Whole("scale", torch.Zeros(torch.Float32, 1)); return l }},
		{`tensor "embed.weight" is BF16[8 3] here, BF16[7 3] in`, func(l []Entry) []Entry {
			l[0] = Whole("embed.weight", torch.Zeros(torch.BFloat16, 8, 3))
			return l
		}},
		{`tensor "embed.weight" is F32[7 3] here, BF16[7 3] in`, func(l []Entry) []Entry {
			l[0] = Whole("embed.weight", torch.Zeros(torch.Float32, 7, 3))
			return l
		}},
		{`model tensor "embed.weight": it has shape [7 3], rows 1 to 3 of [7 3] need [2 3]`, func(l []Entry) []Entry { l[0].Lo, l[0].Hi = 1, 3; return l }},
		{`rows -1 to 7`, func(l []Entry) []Entry { l[0].Lo = -1; return l }},
		{`model tensor "embed.weight": it is listed twice`, func(l []Entry) []Entry { return append(l, l[0]) }},
		{`model tensor "embed.weight": it is on the meta device`, func(l []Entry) []Entry {
			l[0].Tensor = torch.EmptyOn(torch.Meta, torch.BFloat16, 7, 3)
			return l
		}},
		{`model tensor "embed.weight": torch: meta: the tensor was freed`, func(l []Entry) []Entry { l[0].Tensor.Free(); return l }},
	} {
		list := entries(modelTensors, replicated, g, 1, false)
		require.ErrorContains(t, c.Load(t.Context(), Model, k.edit(list)), k.want)
		require.NotContains(t, list[2].Tensor.Bytes(), byte(20), "nothing was changed")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	require.ErrorContains(t, c.Load(ctx, Model, entries(modelTensors, replicated, g, 1, false)), "stopped")
}
