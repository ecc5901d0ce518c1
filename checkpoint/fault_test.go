package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// saveErrors saves from size ranks, where edit may spoil a rank's part, and returns each rank's error.
func saveErrors(t *testing.T, root string, step, size int, o SaveOptions, edit func(rank int, s *Snapshot)) []error {
	t.Helper()
	errs := make([]error, size)
	var mu sync.Mutex
	ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
		s := snapshot(fsdp.ShardRows, g, step)
		if edit != nil {
			edit(g.Rank(), &s)
		}
		_, err := Save(ctx, g, root, step, s, o)
		mu.Lock()
		defer mu.Unlock()
		errs[g.Rank()] = err
		return nil
	})
	return errs
}

// requireFault checks that rank failed with want and that the others say so.
func requireFault(t *testing.T, errs []error, rank int, want string) {
	t.Helper()
	for r, err := range errs {
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, fmt.Sprintf("checkpoint: rank %d: save ", r))
		var other *RankError
		require.Equal(t, r != rank, errors.As(err, &other), "%v", err)
		if r != rank {
			require.Equal(t, rank, other.Rank)
			require.ErrorContains(t, err, fmt.Sprintf("rank %d failed to save: ", rank))
		}
	}
}

func requireOnly(t *testing.T, root string, names ...string) {
	t.Helper()
	list, err := os.ReadDir(root)
	require.NoError(t, err)
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	require.Equal(t, names, got)
}

func TestErrorOnOneRank(t *testing.T) {
	root := t.TempDir()
	dir := saveAt(t, root, 1, 3, fsdp.ShardRows, SaveOptions{TotalLimit: 1})
	for rank := range 3 {
		errs := saveErrors(t, root, 2, 3, SaveOptions{TotalLimit: 1}, func(r int, s *Snapshot) {
			if r == rank {
				s.Model[0].Tensor.Free()
			}
		})
		requireFault(t, errs, rank, `model tensor "embed.weight": torch: meta: the tensor was freed`)
		errs = saveErrors(t, root, 2, 3, SaveOptions{TotalLimit: 1}, func(r int, s *Snapshot) {
			if r == rank {
				s.Model[3].Tensor.ResizeStorage(0)
			}
		})
		requireFault(t, errs, rank, `model tensor "layers.1.codes": its storage is freed`)
		requireOnly(t, root, "checkpoint-1")
		loadAt(t, dir, 1, 2, fsdp.ShardRows)
	}
	requireFault(t, saveErrors(t, root, 2, 2, SaveOptions{}, func(r int, s *Snapshot) { s.Trainer = func() {} }), 0, "write the trainer's state as JSON")
	requireFault(t, saveErrors(t, root, 2, 2, SaveOptions{}, func(r int, s *Snapshot) {
		if r == 1 {
			s.RankState[0].Hi = 1
		}
	}), 1, `rank_state tensor "rng"`)
	require.Error(t, saveErrors(t, root, -1, 1, SaveOptions{}, nil)[0])
	requireOnly(t, root, "checkpoint-1")
}

func TestRanksThatDisagree(t *testing.T) {
	root := t.TempDir()
	for want, edit := range map[string]func(rank int, s *Snapshot){
		`model tensor "layers.0.weight" F32[5 2 2]: rows 3 to 5 are on no rank`: func(r int, s *Snapshot) {
			if r == 1 {
				s.Model = append(s.Model[:2], s.Model[3:]...)
			}
		},
		`overlap rows 2 to 5 of rank 1`: func(r int, s *Snapshot) {
			if r == 1 {
				s.Model[2].Lo = 2
				s.Model[2].Tensor = torch.Zeros(torch.Float32, 3, 2, 2)
			}
		},
		`model tensor "embed.weight" is BF16[7 3] on rank 0, F32[7 3] on rank 1`: func(r int, s *Snapshot) {
			if r == 1 {
				s.Model[0].Tensor = torch.Zeros(torch.Float32, 3, 3)
			}
		},
	} {
		for _, err := range saveErrors(t, root, 3, 2, SaveOptions{}, edit) {
			require.ErrorContains(t, err, want)
		}
	}
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		_, err := Save(ctx, g, root, 1+g.Rank(), Snapshot{}, SaveOptions{})
		if err == nil || !strings.Contains(err.Error(), "rank 0 saves step 1, rank 1 step 2") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	requireOnly(t, root)
}

func TestThingsInTheWay(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	requireFault(t, saveErrors(t, filepath.Join(file, "sub"), 1, 2, SaveOptions{}, nil), 0, "not a directory")
	requireFault(t, saveErrors(t, file, 1, 2, SaveOptions{}, nil), 0, "not a directory")

	root := filepath.Join(base, "root")
	require.NoError(t, os.MkdirAll(root, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "checkpoint-1"), nil, 0o600))
	requireFault(t, saveErrors(t, root, 1, 2, SaveOptions{}, nil), 0, "checkpoint-1 is in the way: it is no folder")
	require.NoError(t, os.WriteFile(filepath.Join(root, "tmp-checkpoint-2"), nil, 0o600))
	requireFault(t, saveErrors(t, root, 2, 2, SaveOptions{}, nil), 0, "tmp-checkpoint-2")
	foreign := filepath.Join(root, "checkpoint-3")
	require.NoError(t, os.MkdirAll(filepath.Join(foreign, "pytorch_model_fsdp_0"), 0o755))
	requireFault(t, saveErrors(t, root, 3, 2, SaveOptions{}, nil), 0, "another program wrote it")
	require.DirExists(t, filepath.Join(foreign, "pytorch_model_fsdp_0"))
	require.NoError(t, os.Mkdir(filepath.Join(root, "checkpoint-4"), 0o755))
	loadAt(t, saveAt(t, root, 4, 2, fsdp.ShardRows, SaveOptions{}), 4, 1, fsdp.ShardRows)
}

func TestCancelledRankTellsTheOthers(t *testing.T) {
	root := t.TempDir()
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		cause := errors.New("a signal came")
		if g.Rank() == 1 {
			stopped, cancel := context.WithCancelCause(ctx)
			cancel(cause)
			ctx = stopped
		}
		err := Agree(ctx, g, "load", context.Cause(ctx))
		var other *RankError
		if g.Rank() == 1 && !errors.Is(err, cause) || g.Rank() == 0 && (!errors.As(err, &other) || other.Rank != 1) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	requireOnly(t, root)
}

func TestDamagedFiles(t *testing.T) {
	root := t.TempDir()
	saveAt(t, root, 1, 2, fsdp.ShardRows, SaveOptions{})
	dir := saveAt(t, root, 2, 2, fsdp.ShardRows, SaveOptions{})
	c, err := Open(dir)
	require.NoError(t, err)
	files := c.Info().Files
	require.NoError(t, c.Close())
	for _, f := range append(files, File{Path: manifestName}) {
		path := filepath.Join(dir, f.Path)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		damage := map[string]func() error{
			"missing": func() error { return os.Remove(path) },
			"cut":     func() error { return os.WriteFile(path, whole[:len(whole)-3], 0o600) },
			"a folder": func() error {
				return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
			},
		}
		for name, spoil := range damage {
			require.NoError(t, spoil())
			_, err = Open(dir)
			require.ErrorContains(t, err, filepath.Base(f.Path), name)
			if name != "a folder" || f.Path != manifestName {
				require.ErrorIs(t, err, ErrIncomplete)
			}
			latest, step, err := Latest(root)
			require.NoError(t, err)
			require.Equal(t, 1, step)
			require.Equal(t, filepath.Join(root, "checkpoint-1"), latest)
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.WriteFile(path, whole, 0o600))
		}
	}
	loadAt(t, dir, 2, 2, fsdp.ShardRows)

	first := filepath.Join(dir, files[0].Path)
	info, err := os.Stat(first)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(first, info.Size()-1))
	_, err = Open(dir)
	require.ErrorContains(t, err, fmt.Sprintf("%s has %d bytes, rank 0 wrote %d", first, info.Size()-1, info.Size()))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "checkpoint-1")))
	_, _, err = Latest(root)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, first)
}

func TestBadHeaders(t *testing.T) {
	dir := saveAt(t, t.TempDir(), 2, 2, fsdp.ShardRows, SaveOptions{})
	withoutSums(t, dir)
	for _, k := range []struct{ want, from, to string }{
		{`rows 9 to 12 follow rows up to 4`, `\"embed.weight\":{\"saved_offsets\":[4,0]}`, `\"embed.weight\":{\"saved_offsets\":[9,0]}`},
		{`only dimension 0 may be sharded`, `\"embed.weight\":{\"saved_offsets\":[4,0]}`, `\"embed.weight\":{\"saved_offsets\":[4,1]}`},
		{`does not list it`, `\"embed.weight\":{\"saved_offsets\":[4,0]}`, `\"embed.wEight\":{\"saved_offsets\":[4,0]}`},
		{`its header has no DCP_SHARDING_INFO`, `DCP_SHARDING_INFO`, `DCP_sHARDING_INFO`},
		{`does not continue BF16[4 3]`, `"embed.weight":{"dtype":"BF16"`, `"embed.weight":{"dtype":"F16" `},
	} {
		path := filepath.Join(dir, "model/shard-00002-model-00001-of-00001.safetensors")
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(whole), k.from)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(whole), k.from, k.to, 1)), 0o600))
		c, err := Open(dir)
		require.NoError(t, err)
		_, err = c.Tensors(Model)
		require.ErrorContains(t, err, k.want)
		require.ErrorContains(t, err, path)
		require.NoError(t, c.Close())
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
}

func TestStaleFoldersAreRemoved(t *testing.T) {
	root := t.TempDir()
	_, _, err := Latest(root)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = Latest(filepath.Join(root, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, name := range []string{"tmp-checkpoint-3/model", "tmp-checkpoint-4", "tmp-mine", "checkpoint-best", "checkpoint-007", "checkpoint-9"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	_, _, err = Latest(root)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "checkpoint-9 has no checkpoint.json")
	dir := saveAt(t, root, 3, 1, fsdp.ShardRows, SaveOptions{TotalLimit: 1})
	requireOnly(t, root, "checkpoint-007", "checkpoint-3", "checkpoint-9", "checkpoint-best", "tmp-mine")
	latest, step, err := Latest(root)
	require.NoError(t, err)
	require.Equal(t, dir, latest)
	require.Equal(t, 3, step)
}

func TestTotalLimit(t *testing.T) {
	root := t.TempDir()
	for _, step := range []int{5, 10, 100} {
		saveAt(t, root, step, 1, fsdp.ShardRows, SaveOptions{TotalLimit: 2, Keep: []int{5}})
	}
	requireOnly(t, root, "checkpoint-100", "checkpoint-5")
	saveAt(t, root, 7, 1, fsdp.ShardRows, SaveOptions{TotalLimit: 1}) // resumed from step 5: the new one stays
	requireOnly(t, root, "checkpoint-7")
}

func TestReplaceTheSameStep(t *testing.T) {
	root := t.TempDir()
	saveAt(t, root, 1, 3, fsdp.ShardRows, SaveOptions{})
	loadAt(t, saveAt(t, root, 1, 2, lastOnly, SaveOptions{}), 1, 2, fsdp.ShardRows)
	requireOnly(t, root, "checkpoint-1")

	// Where folders cannot be exchanged, the old one has a second name for a moment.
	final, tmp := filepath.Join(root, "checkpoint-1"), filepath.Join(root, "tmp-checkpoint-1")
	require.NoError(t, os.Rename(final, final+oldSuffix))
	latest, step, err := Latest(root)
	require.NoError(t, err)
	require.Equal(t, 1, step)
	loadAt(t, latest, 1, 1, fsdp.ShardRows)
	loadAt(t, saveAt(t, root, 1, 1, fsdp.ShardRows, SaveOptions{}), 1, 2, fsdp.ShardRows)
	requireOnly(t, root, "checkpoint-1")
	require.NoError(t, os.CopyFS(tmp, os.DirFS(final)))
	require.NoError(t, publishByRenames(tmp, final))
	requireOnly(t, root, "checkpoint-1", "checkpoint-1.old")
	latest, _, err = Latest(root)
	require.NoError(t, err)
	require.Equal(t, final, latest)
	require.NoError(t, removeStale(root))
	requireOnly(t, root, "checkpoint-1")
	require.Error(t, publishByRenames(tmp, final), "nothing to publish")
	loadAt(t, final, 1, 1, fsdp.ShardRows)
}

// tile must accept exactly what covers every row once, whichever order and repetition the ranges come in.
func TestPropertyTile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfN(rapid.Int64Range(1, 4), 1, 6).Draw(t, "lengths")
		var ranges []held
		rows := int64(0)
		for _, n := range cuts {
			ranges = append(ranges, held{lo: rows, hi: rows + n})
			rows += n
		}
		lost := rapid.IntRange(-1, len(ranges)-1).Draw(t, "lost")
		wrong := lost >= 0
		if wrong {
			ranges = append(ranges[:lost], ranges[lost+1:]...)
		}
		for range rapid.IntRange(0, 3).Draw(t, "copies") {
			ranges = append(ranges, held{lo: 1, hi: 1})
			ranges = append(ranges, ranges[rapid.IntRange(0, len(ranges)-1).Draw(t, "which")])
		}
		ranges = rapid.Permutation(ranges).Draw(t, "order")
		for i := range ranges {
			ranges[i].rank = i
		}
		got, err := tile(ranges, rows)
		if wrong != (err != nil) {
			t.Fatalf("%v over %d rows: %v", ranges, rows, err)
		}
		next := int64(0)
		for _, h := range got {
			if h.lo != next {
				t.Fatalf("gap in %v", got)
			}
			for _, o := range ranges[:h.rank] {
				if o.lo == h.lo && o.hi == h.hi {
					t.Fatalf("rank %d writes what rank %d has", h.rank, o.rank)
				}
			}
			next = h.hi
		}
	})
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"format_version":1,"step":3,"world_size":2,"files":[{"path":"model/a","kind":"model","rank":1,"size":9,"tensors":1}]}`))
	f.Add([]byte(`{"format_version":1,"world_size":1,"files":[{"path":"../../etc/passwd"}]}`))
	f.Add([]byte(`{"format_version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(data)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if !filepath.IsLocal(file.Path) || file.Rank >= m.WorldSize || file.Size < 0 {
				t.Fatalf("accepted %+v", file)
			}
		}
	})
}
