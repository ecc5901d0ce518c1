package quant_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/models/llama/llamatest"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// shard gives a parameter of this rank its rows, as sharding along dimension 0 does.
func shard(p *nn.Param, rank, size int) {
	if p.Replicated() {
		return
	}
	rows := p.Shape()[0]
	chunk := (rows + int64(size) - 1) / int64(size)
	p.SetRows(min(rows, int64(rank)*chunk), min(rows, int64(rank+1)*chunk))
}

// gathered holds the parts of parameters that the ranks own, as bytes.
type gathered struct {
	mu    sync.Mutex
	parts map[string][][]byte
}

func (g *gathered) add(name string, rank, size int, t *torch.Tensor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.parts[name] == nil {
		g.parts[name] = make([][]byte, size)
	}
	g.parts[name][rank] = t.Bytes()
}

func (g *gathered) whole(name string, replicated bool) []byte {
	if replicated {
		return g.parts[name][0]
	}
	var all []byte
	for _, p := range g.parts[name] {
		all = append(all, p...)
	}
	return all
}

func TestGoldenShardedSmolLM2(t *testing.T) {
	var meta nf4Meta
	llamatest.JSON(t, &meta, "smollm2_logits", "nf4_meta.json")
	files, err := modelio.Open(llamatest.SmolLM2(t))
	require.NoError(t, err)
	defer files.Close()
	for _, size := range []int{2, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			all := &gathered{parts: map[string][][]byte{}}
			ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
				m, err := llama.New(files.Config, llama.Options{})
				if err != nil {
					return err
				}
				if _, err := quant.Quantize(m, quant.Config{DoubleQuant: true}, nil); err != nil {
					return err
				}
				params := nn.NamedParams(m)
				for _, n := range params {
					shard(n.Param, g.Rank(), size)
				}
				if err := llama.Load(ctx, m, files.Weights, llama.LoadOptions{Group: g}); err != nil {
					return err
				}
				for _, n := range params {
					all.add(n.Name, g.Rank(), size, n.Param.Tensor())
					n.Param.Tensor().Free()
				}
				return nil
			})
			for name, want := range meta.Layers {
				require.Equal(t, want.Packed, hash(all.whole(name+".weight", false)), name)
				require.Equal(t, want.Absmax, hash(all.whole(name+".weight.absmax", false)), name)
				for _, nested := range all.parts[name+".weight.nested_absmax"] {
					require.Equal(t, want.Nested, hash(nested), name)
				}
			}
		})
	}
}

// Any shape, sharded over any number of ranks, gives the bits of one rank: also where blocks cross rows and ranks.
func TestParitySharded(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		out, in := rapid.Int64Range(1, 40).Draw(r, "out"), rapid.Int64Range(1, 200).Draw(r, "in")
		size := rapid.IntRange(1, 4).Draw(r, "ranks")
		c := quant.Config{
			Type:        rapid.SampledFrom([]string{quant.NF4, quant.FP4}).Draw(r, "type"),
			BlockSize:   rapid.SampledFrom([]int64{32, 64, 128}).Draw(r, "block"),
			DoubleQuant: rapid.Bool().Draw(r, "double"),
		}
		s := torch.NewScope(nil)
		defer s.Close()
		g := torch.NewGenerator(rapid.Int64Range(0, 1<<40).Draw(r, "seed"))
		weight := s.Own(torch.Randn(g, torch.Float32, out, in)).To(torch.BFloat16)
		dir, err := os.MkdirTemp("", "quant")
		require.NoError(r, err)
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, modelio.WeightsName)
		w, err := safetensors.Create(path, []safetensors.Spec{{Name: "linear.weight", DType: "BF16", Shape: []int64{out, in}}}, nil)
		require.NoError(r, err)
		require.NoError(r, w.Write("linear.weight", weight.Bytes()))
		require.NoError(r, w.Commit())
		weights, err := modelio.OpenWeights(dir)
		require.NoError(r, err)
		defer weights.Close()
		view, err := weights.Tensor("linear.weight")
		require.NoError(r, err)

		all := &gathered{parts: map[string][][]byte{}}
		load := func(ctx context.Context, g dist.Group, size int, add func(n nn.Named)) error {
			m := &model{Linear: nn.NewLinear(in, out, false, torch.BFloat16, torch.Meta)}
			if _, err := quant.Quantize(m, c, nil); err != nil {
				return err
			}
			for _, n := range nn.NamedParams(m) {
				shard(n.Param, g.Rank(), size)
			}
			if err := m.Linear.(*quant.Linear4bit).LoadWeight(ctx, view, g); err != nil {
				return err
			}
			for _, n := range nn.NamedParams(m) {
				add(n)
				n.Param.Tensor().Free()
			}
			return nil
		}
		require.NoError(r, ranktest.Ranks(t.Context(), size, func(ctx context.Context, g dist.Group) error {
			return load(ctx, g, size, func(n nn.Named) { all.add(n.Name, g.Rank(), size, n.Param.Tensor()) })
		}))
		require.NoError(r, load(t.Context(), dist.NewSingle(), 1, func(n nn.Named) {
			require.Equal(r, n.Param.Tensor().Bytes(), all.whole(n.Name, n.Param.Replicated()), n.Name)
		}))
	})
}

func TestShardedLoadNeedsItsGroup(t *testing.T) {
	m := llamatest.Model(t, "tiny", "plain")
	files, err := modelio.Open(llamatest.Golden("tiny", "plain"))
	require.NoError(t, err)
	defer files.Close()
	m, err = llama.New(m.Config, llama.Options{})
	require.NoError(t, err)
	_, err = quant.Quantize(m, quant.Config{DoubleQuant: true}, nil)
	require.NoError(t, err)
	for _, p := range nn.Params(m) {
		shard(p, 0, 2)
	}
	err = llama.Load(t.Context(), m, files.Weights, llama.LoadOptions{})
	require.ErrorContains(t, err, "needs the group of its ranks")
	require.ErrorContains(t, err, "model.layers.0.self_attn.q_proj")
}

func TestQuantizeRefusesBadConfig(t *testing.T) {
	_, err := quant.Quantize(&model{}, quant.Config{Type: "int3"}, nil)
	require.ErrorContains(t, err, `type "int3"`)
	_, err = quant.Quantize(&model{}, quant.Config{BlockSize: 48}, nil)
	require.ErrorContains(t, err, "block size 48")
}
