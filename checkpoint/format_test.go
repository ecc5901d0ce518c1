package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/modelio/pickle"
	"github.com/gofsdp/gofsdp/torch"
)

func TestParityOfTorchFormatAfterResharding(t *testing.T) {
	for _, size := range []int{1, 2, 3} {
		for name, save := range map[string]cut{"chunks": fsdp.ShardRows, "backwards": backwards} {
			dir := saveAt(t, t.TempDir(), 4, size, save, SaveOptions{Format: DCP})
			for later := range 4 {
				if later == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s at %d to %d", name, size, later), func(t *testing.T) {
					loadAt(t, dir, 4, later, fsdp.ShardRows)
					loadAt(t, dir, 4, later, lastOnly)
				})
			}
		}
	}
}

func TestTorchFormatOnDisk(t *testing.T) {
	root := t.TempDir()
	rename := func(kind Kind, param string) string {
		if kind == Model {
			return "base_model.model." + param
		}
		return "base_model.model." + strings.Replace(param, ".weight", ".lora_A.default.weight", 1)
	}
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		s := snapshot(fsdp.ShardRows, g, 1)
		s.Groups = []Group{{Params: []string{"layers.0.weight"}, Settings: []Setting{{"lr", 0.5}, {"betas", []float64{0.9, 0.99}}, {"fused", nil}}}, {}}
		_, err := Save(ctx, g, root, 1, s, SaveOptions{Format: DCP, DCPName: rename})
		return err
	})
	dir := filepath.Join(root, "checkpoint-1")
	f, err := dcp.Open(filepath.Join(dir, "optimizer_0"), nil)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, []string{"__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}, f.Files())
	betas, err := f.Value("optimizer.param_groups.0.betas")
	require.NoError(t, err)
	require.Equal(t, &pickle.Tuple{Items: []any{0.9, 0.99}}, betas)
	params, err := f.Value("optimizer.param_groups.0.params")
	require.NoError(t, err)
	require.Equal(t, &pickle.List{Items: []any{"base_model.model.layers.0.lora_A.default.weight"}}, params)
	fused, err := f.Value("optimizer.param_groups.0.fused")
	require.NoError(t, err)
	require.Nil(t, fused)
	_, err = f.Value("optimizer.param_groups.1.params")
	require.NoError(t, err)
	items := f.Items()
	i := slices.IndexFunc(items, func(i dcp.Item) bool { return strings.HasSuffix(i.Name, ".exp_avg") })
	require.Equal(t, "optimizer.state.base_model.model.layers.0.lora_A.default.weight.exp_avg", items[i].Name)
	require.Equal(t, []any{"optimizer", "state", "base_model.model.layers.0.lora_A.default.weight", "exp_avg"}, items[i].Path)

	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.False(t, c.Foreign())
	list, err := c.Tensors(Optimizer)
	require.NoError(t, err)
	require.Equal(t, "layers.0.lora_A.weight.step", list[0].Name)
	list, err = c.Tensors(Model)
	require.NoError(t, err)
	require.Equal(t, "embed.weight", list[0].Name)
}

// torchFolder copies what PyTorch wrote into a checkpoint of the Trainer's.
func torchFolder(t *testing.T, root string) string {
	dir := filepath.Join(root, "checkpoint-7")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("..", "testdata", "torch", "dcp"))))
	require.NoError(t, os.Remove(filepath.Join(dir, "full.pt")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "trainer_state.json"), []byte(`{"global_step": 7, "epoch": 1.5}`), 0o600))
	return dir
}

// golden entries of the two layers, at this rank's rows.
func torchEntries(rank, size int) (model, optimizer []Entry) {
	for _, p := range []struct {
		name  string
		shape []int64
	}{{"0.weight", []int64{5, 4}}, {"0.bias", []int64{5}}, {"1.weight", []int64{1, 5}}, {"1.bias", []int64{1}}} {
		lo, hi := fsdp.ShardRows(p.shape[0], rank, size)
		local := append([]int64{hi - lo}, p.shape[1:]...)
		model = append(model, Entry{Name: p.name, Tensor: torch.Zeros(torch.Float32, local...), Shape: p.shape, Lo: lo, Hi: hi})
		for _, state := range []string{"exp_avg", "exp_avg_sq"} {
			optimizer = append(optimizer, Entry{Name: p.name + "." + state, Tensor: torch.Zeros(torch.Float32, local...), Shape: p.shape, Lo: lo, Hi: hi})
		}
		optimizer = append(optimizer, Whole(p.name+".step", torch.Zeros(torch.Float32)))
	}
	return model, optimizer
}

func TestGoldenTorchCheckpointAtAnyWorldSize(t *testing.T) {
	root := t.TempDir()
	dir := torchFolder(t, root)
	want, err := pickle.Open(filepath.Join("..", "testdata", "torch", "dcp", "full.pt"))
	require.NoError(t, err)
	defer want.Close()
	for size := 1; size <= 6; size++ {
		ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
			c, err := Open(dir)
			if err != nil {
				return err
			}
			defer c.Close()
			model, optimizer := torchEntries(g.Rank(), g.Size())
			if err := errors.Join(c.Load(ctx, Model, model), c.Load(ctx, Optimizer, optimizer)); err != nil {
				return err
			}
			for _, e := range model {
				t, err := want.Tensor(e.Name)
				if err != nil {
					return err
				}
				rows, err := t.Rows(e.Lo, e.Hi)
				if err != nil || string(rows) != string(e.Tensor.Bytes()) {
					return fmt.Errorf("%s rows %d to %d differ (%v)", e.Name, e.Lo, e.Hi, err)
				}
			}
			if step := optimizer[2].Tensor.Item(); step != 1 {
				return fmt.Errorf("step %v", step)
			}
			err = c.LoadRankState(ctx, g.Rank(), g.Size(), nil)
			if !errors.Is(err, ErrWorldSize) || !c.Foreign() || c.Info().Step != 7 {
				return fmt.Errorf("rank state: %v, manifest %v", err, c.Info())
			}
			return nil
		})
	}
	latest, step, err := Latest(root)
	require.NoError(t, err)
	require.Equal(t, dir, latest)
	require.Equal(t, 7, step)
	for step := 8; step < 11; step++ { // the limit is for checkpoints of this program
		saveAt(t, root, step, 1, fsdp.ShardRows, SaveOptions{TotalLimit: 1})
	}
	requireOnly(t, root, "checkpoint-10", "checkpoint-7")

	alone, err := Open(filepath.Join(dir, "pytorch_model_fsdp_0"))
	require.NoError(t, err)
	defer alone.Close()
	model, _ := torchEntries(0, 1)
	require.NoError(t, alone.Load(t.Context(), Model, model))
}

func TestForeignFolders(t *testing.T) {
	root := t.TempDir()
	dir := torchFolder(t, root)
	require.NoError(t, os.Remove(filepath.Join(dir, "optimizer_0", ".metadata")))
	_, err := Open(dir)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, "optimizer_0 has no .metadata")
	_, _, err = Latest(root)
	require.ErrorIs(t, err, os.ErrNotExist)

	local := filepath.Join(root, "checkpoint-8")
	require.NoError(t, os.Mkdir(local, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(local, "pytorch_model_fsdp_rank0.bin"), nil, 0o600))
	_, err = Open(local)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "LOCAL_STATE_DICT")
}

func TestFullStateDictOfAccelerate(t *testing.T) {
	dir := t.TempDir()
	whole, err := os.ReadFile(filepath.Join("..", "testdata", "torch", "dcp", "full.pt"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pytorch_model_fsdp.bin"), whole, 0o600))
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	for rank := range 3 {
		model, _ := torchEntries(rank, 3)
		require.NoError(t, c.Load(t.Context(), Model, model))
	}
	require.NoError(t, c.Load(t.Context(), Optimizer, nil))
}

func TestNamesOfOtherPrograms(t *testing.T) {
	for from, want := range map[string]string{
		"model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight":                            "model.layers.0.mlp.up_proj.weight",
		"_orig_mod.model.norm.weight":                                                             "model.norm.weight",
		"module._fsdp_wrapped_module.model.norm.weight":                                           "model.norm.weight",
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight":                  "model.layers.0.self_attn.q_proj.lora_A.weight",
		"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight":                          "model.layers.0.self_attn.q_proj.lora_B.weight",
		"base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight":                      "model.layers.0.self_attn.q_proj.weight",
		"base_model.model.model.layers.0._checkpoint_wrapped_module.mlp.up.lora_B.default.weight": "model.layers.0.mlp.up.lora_B.weight",
	} {
		require.Equal(t, want, canonical(from))
	}
}
