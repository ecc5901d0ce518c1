package peft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

// The saved adapter holds what every rank owns, not only rank 0's rows with zeros behind them.
func TestAdapterOfAllRanks(t *testing.T) {
	base, root := llamatest.Golden("tiny", "plain"), t.TempDir()
	for size := 1; size <= 4; size++ { // rank 3 is 1, 1, 1 and 0 rows over four
		dir := filepath.Join(root, fmt.Sprint(size))
		ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
			files, err := modelio.Open(base)
			if err != nil {
				return err
			}
			defer files.Close()
			m, err := llama.New(files.Config, llama.Options{DType: torch.Float32})
			if err != nil {
				return err
			}
			a, err := peft.Apply(m, peft.Config{R: 3, TargetModules: peft.AllLinear}, peft.Options{})
			if err != nil {
				return err
			}
			if err := llama.Load(ctx, m, files.Weights, llama.LoadOptions{Group: g}); err != nil {
				return err
			}
			sharded, err := fsdp.Wrap(m, g, fsdp.Config{Units: fsdp.ByKind("LlamaDecoderLayer")})
			if err != nil {
				return err
			}
			if err := sharded.Load(); err != nil {
				return err
			}
			fill := func(offset float64) {
				for _, l := range a.Layers {
					l.A.Tensor().VariableData().Fill(0.03 + 0.01*float64(g.Rank()) + offset)
					l.B.Tensor().VariableData().Fill(0.01 + 0.01*float64(g.Rank()) + offset)
				}
			}
			fill(0)
			err = a.Save(ctx, dir, peft.SaveOptions{
				Full: func(ctx context.Context, _ string, p *nn.Param) (*torch.Tensor, error) {
					return sharded.FullParam(ctx, p)
				},
				Silent: g.Rank() != 0,
			})
			if err := errors.Join(err, g.Barrier(ctx)); err != nil {
				return err
			}
			var want [][]byte
			for _, l := range a.Layers {
				want = append(want, l.A.Tensor().Bytes(), l.B.Tensor().Bytes())
			}
			fill(7)
			if err := a.LoadWeights(dir); err != nil {
				return err
			}
			for i, l := range a.Layers {
				if !bytes.Equal(want[2*i], l.A.Tensor().Bytes()) || !bytes.Equal(want[2*i+1], l.B.Tensor().Bytes()) {
					return fmt.Errorf("%s has other values after loading", l.Name)
				}
			}
			return nil
		})
		f, err := safetensors.Open(filepath.Join(dir, peft.WeightsName))
		require.NoError(t, err)
		for name, v := range f.All() {
			require.Len(t, v.Shape, 2, name)
			require.NotZero(t, v.NumElements(), name)
			require.NotContains(t, torch.Slice[float32](torch.FromBytes(torch.Float32, v.Data, v.Shape...)), float32(0), name)
		}
		require.NoError(t, f.Close())
	}
}
