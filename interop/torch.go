package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
	"github.com/gofsdp/gofsdp/sft"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// A run of a few steps on the golden batch, the same on every rank, which PyTorch makes as well (fsdp.py). Its checkpoints
// cross over in PyTorch's format, and the losses after them must be those of the run that was not interrupted.
const (
	stepsBefore = 2
	stepsAfter  = 3
	runDecay    = 0.01
	runLR       = 1e-3
)

// torchRun is the run on one rank.
type torchRun struct {
	*loaded
	sharded *fsdp.Model
	trainer *sft.Trainer
	batch   data.Batch
}

func (s *session) newTorchRun(ctx context.Context, g dist.Group) (*torchRun, error) {
	m, err := s.loadModel(ctx, filepath.Join(s.goldens, "tiny", "plain"))
	if err != nil {
		return nil, err
	}
	r := &torchRun{loaded: m}
	if r.sharded, err = fsdp.Wrap(m.model, g, fsdp.Config{Units: fsdp.ByKind("LlamaDecoderLayer"), DivideFactor: 1}); err != nil {
		return nil, err
	}
	if err := r.sharded.Load(); err != nil {
		return nil, err
	}
	opt, err := optim.NewAdamW(nn.Params(m.model), optim.AdamConfig{LR: runLR, WeightDecay: runDecay})
	if err != nil {
		return nil, err
	}
	r.trainer = &sft.Trainer{Model: m.model, Sharded: r.sharded, Optimizer: opt, Generator: torch.NewGenerator(1)}
	r.batch, err = s.goldenBatch()
	return r, err
}

// goldenBatch is the first promptLen tokens of the golden rows; every token is a target but the first.
func (s *session) goldenBatch() (b data.Batch, err error) {
	file, err := safetensors.Open(filepath.Join(s.goldens, "tiny", "plain", "forward.safetensors"))
	if err != nil {
		return b, err
	}
	defer file.Close()
	view, err := file.Tensor("input_ids")
	if err != nil {
		return b, err
	}
	b.B, b.T = int(view.Shape[0]), promptLen
	ids := torch.FromBytes(torch.Int32, view.Data, view.Shape...)
	all := torch.Slice[int32](ids)
	for row := range b.B {
		for _, id := range all[row*int(view.Shape[1]):][:promptLen] {
			b.IDs = append(b.IDs, int64(id))
		}
		b.Lengths = append(b.Lengths, promptLen)
	}
	b.Labels = append([]int64{}, b.IDs...)
	return b, nil
}

func (r *torchRun) steps(ctx context.Context, n int) (losses []float64, err error) {
	for range n {
		s, err := r.trainer.Step(ctx, []data.Batch{r.batch}, false)
		if err != nil {
			return nil, err
		}
		losses = append(losses, s.Loss)
	}
	return losses, nil
}

// entries are what a checkpoint holds.
func (r *torchRun) entries() (model, optimizer []checkpoint.Entry, err error) {
	r.trainer.Optimizer.InitState()
	optimizer, err = checkpoint.OptimizerEntries(r.trainer.Optimizer, nn.NamedParams(r.model))
	return checkpoint.ModelEntries(r.sharded, nil), optimizer, err
}

// writeTorchCheckpoint trains on two ranks, saves in PyTorch's format on the way and notes the losses.
func (s *session) writeTorchCheckpoint(ctx context.Context) error {
	dir := filepath.Join(s.ours, "fsdp")
	return ranktest.Ranks(ctx, 2, func(ctx context.Context, g dist.Group) error {
		r, err := s.newTorchRun(ctx, g)
		if err != nil {
			return err
		}
		losses, err := r.steps(ctx, stepsBefore)
		if err != nil {
			return err
		}
		model, optimizer, err := r.entries()
		if err != nil {
			return err
		}
		groups, err := checkpoint.AdamWGroups(r.trainer.Optimizer, nn.NamedParams(r.model), optim.AdamConfig{})
		if err != nil {
			return err
		}
		snapshot := checkpoint.Snapshot{Model: model, Optimizer: optimizer, Groups: groups}
		if _, err := checkpoint.Save(ctx, g, dir, stepsBefore, snapshot, checkpoint.SaveOptions{Format: checkpoint.DCP}); err != nil {
			return err
		}
		more, err := r.steps(ctx, stepsAfter)
		if err != nil || g.Rank() != 0 {
			return err
		}
		text, err := json.Marshal(append(losses, more...))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "losses.json"), text, 0o644)
	})
}

// readTorchCheckpoint goes on from the checkpoint that FSDP2 wrote at two ranks, at one, two and three.
func (s *session) readTorchCheckpoint(ctx context.Context) error {
	var want []float64
	text, err := os.ReadFile(filepath.Join(s.theirs, "fsdp", "losses.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &want); err != nil {
		return err
	}
	for size := 1; size <= 3; size++ {
		err := ranktest.Ranks(ctx, size, func(ctx context.Context, g dist.Group) error {
			r, err := s.newTorchRun(ctx, g)
			if err != nil {
				return err
			}
			c, err := checkpoint.Open(filepath.Join(s.theirs, "fsdp", "checkpoint-2"))
			if err != nil {
				return err
			}
			defer c.Close()
			model, optimizer, err := r.entries()
			if err != nil {
				return err
			}
			if err := c.Load(ctx, checkpoint.Model, model); err != nil {
				return err
			}
			if err := c.Load(ctx, checkpoint.Optimizer, optimizer); err != nil {
				return err
			}
			got, err := r.steps(ctx, stepsAfter)
			if err != nil {
				return err
			}
			for i, loss := range got {
				if !(math.Abs(loss-want[stepsBefore+i]) <= tolerance) {
					return fmt.Errorf("step %d: loss %v, PyTorch has %v", stepsBefore+i+1, loss, want[stepsBefore+i])
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%d ranks: %w", size, err)
		}
	}
	return nil
}
