package sft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/accelerate"
	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/sft/schedule"
	"github.com/gofsdp/gofsdp/torch"
)

// RunOptions are what Run needs from the program around it.
type RunOptions struct {
	Env      dist.Env
	Out      io.Writer // of rank 0's progress and lines; nil: nowhere
	Terminal bool      // Out is a terminal: show a bar
	// Launcher holds settings that a launcher handed over (accelerate.FromEnviron); flags go before them. Nil: none.
	Launcher *accelerate.Config
	// Given tells whether a flag was written, rather than left at its default; nil: none was.
	Given func(flag string) bool
}

// Result is what a run leaves behind.
type Result struct {
	Steps      int      `json:"steps"`
	Stopped    bool     `json:"stopped"` // before all steps were made, on request
	TrainLoss  float64  `json:"train_loss"`
	EvalBefore *float64 `json:"eval_loss_before,omitempty"`
	EvalAfter  *float64 `json:"eval_loss_after,omitempty"`

	TrainSeconds float64 `json:"train_seconds"`
	TokensPerSec float64 `json:"tokens_per_second"`
	PeakRSSBytes []int64 `json:"peak_rss_bytes"` // per rank

	Adapter    string `json:"adapter,omitempty"`
	Model      string `json:"model,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	Metrics    string `json:"metrics,omitempty"`
	Curve      string `json:"learning_curve,omitempty"`
}

// Run does a whole run on this rank. When ctx ends on any rank, all ranks finish the running step or evaluation, save a
// checkpoint and return without an error; before training begins, Run returns the cause of ctx instead.
func Run(ctx context.Context, c Config, o RunOptions) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("sft: %w", err)
	}
	sharding, err := c.sharding(o.Launcher, o.Given)
	if err != nil {
		return nil, fmt.Errorf("sft: %w", err)
	}
	if sharding.dcp {
		c.SaveFormat = "dcp"
	}
	if o.Out == nil || o.Env.Rank != 0 {
		o.Out, o.Terminal = io.Discard, false
	}
	runtime.LockOSThread() // libtorch's work of a rank stays on one thread
	defer runtime.UnlockOSThread()
	if err := torch.LoadLibrary(); err != nil {
		return nil, err
	}
	torch.SetNumThreads(Threads(o.Env))

	// Waits for other ranks outlive ctx: a cancelled rank still takes part in the step that the others are in.
	work := context.WithoutCancel(ctx)
	timeout := time.Duration(c.DDPTimeout) * time.Second
	group, leave, err := dist.Init(ctx, o.Env, timeout)
	if err != nil {
		return nil, err
	}
	r := &run{c: c, o: o, sharding: sharding, ctx: ctx, work: work, group: group, say: newReport(o)}
	result, err := r.all()
	if err == nil {
		err = r.built.Close(work)
	}
	if err != nil {
		if r.built != nil {
			r.built.Abort(err)
		}
		group.Abort(err) // do not let the others wait for this rank
		_ = leave(work)
		return nil, err
	}
	return result, leave(work)
}

// Threads is the number of threads of a rank: OMP_NUM_THREADS if it is set, else this rank's share of the cores.
func Threads(e dist.Env) int {
	if n := envInt("OMP_NUM_THREADS"); n > 0 {
		return n
	}
	return max(1, runtime.NumCPU()/max(1, e.LocalWorldSize))
}

// run is one run on one rank.
type run struct {
	c        Config
	o        RunOptions
	sharding *sharding
	ctx      context.Context // ends when somebody asks to stop
	work     context.Context // of collectives
	group    dist.Group
	say      *report

	text     *text
	train    data.Examples
	eval     data.Examples
	built    *Built
	trainer  *Trainer
	loader   *data.Loader
	position data.Position
	steps    int // optimiser steps of the whole run
	perEpoch int // optimiser steps of an epoch
	restored bool
	saved    int // step of the newest checkpoint
	savedDir string
	saver    *checkpoint.Saver // with save_async
	best     best
	// The last evaluation.
	evaluatedAt int
	evalLoss    *float64
	result      Result
}

func (r *run) all() (_ *Result, err error) {
	defer torch.Catch(&err) // the group is told, whatever failed
	if err := r.group0(r.prepareFolder); err != nil {
		return nil, err
	}
	for _, step := range []func() error{r.loadData, r.build, r.plan, r.resume} {
		if err := step(); err != nil {
			return nil, err
		}
		if r.ctx.Err() != nil && r.trainer == nil {
			return nil, context.Cause(r.ctx)
		}
	}
	defer r.loader.Close()
	if err := r.say.open(&r.c, r.steps); err != nil {
		return nil, err
	}
	defer r.say.close()
	if r.c.EvalOnStart && r.eval != nil && !r.restored {
		if r.result.EvalBefore, err = r.evaluate(); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil && r.saver != nil { // a checkpoint that is nearly there is not lost
			ctx, cancel := context.WithTimeout(r.work, time.Minute)
			defer cancel()
			_ = r.saver.Settle(ctx)
		}
	}()
	if err := r.loop(); err != nil {
		return nil, err
	}
	return r.finish()
}

// group0 runs f on rank 0 and gives every rank its outcome.
func (r *run) group0(f func() error) error {
	var err error
	if r.group.Rank() == 0 {
		err = f()
	}
	return agree(r.work, r.group, err)
}

// agree makes an error of one rank an error of all.
func agree(ctx context.Context, g dist.Group, err error) error {
	failed := 0.0
	if err != nil {
		failed = float64(g.Rank() + 1)
	}
	worst, cerr := reduceOverRanks(ctx, g, dist.Max, failed)
	switch {
	case err != nil:
		return err
	case cerr != nil:
		return cerr
	case worst[0] > 0:
		return fmt.Errorf("sft: rank %d: stopped because rank %d failed", g.Rank(), int(worst[0])-1)
	}
	return nil
}

func (r *run) prepareFolder() error {
	if err := os.MkdirAll(r.c.OutputDir, 0o777); err != nil {
		return fmt.Errorf("sft: output_dir: %w", err)
	}
	probe, err := os.CreateTemp(r.c.OutputDir, ".write-test-*")
	if err != nil {
		return fmt.Errorf("sft: output_dir cannot be written: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// loadData reads and tokenises both splits. Every rank does it alone and gets the same.
func (r *run) loadData() error {
	err := func() (err error) {
		files, err := findSplits(r.c.DatasetName)
		if err != nil {
			return err
		}
		if r.text, err = loadText(r.c.ModelNameOrPath); err != nil {
			return err
		}
		if err := r.fits(); err != nil {
			return err
		}
		var stats data.Stats
		if r.train, stats, err = r.text.examples(r.ctx, files.train, r.c.MaxTrainSamples, &r.c); err != nil {
			return err
		}
		r.say.dataset("train", files.train, stats)
		if r.c.Packing {
			if r.train, _, err = data.Pack(r.train, data.PackOptions{Length: r.c.MaxLength}); err != nil {
				return err
			}
		}
		if !r.c.evaluates() {
			return nil
		}
		if files.eval == "" {
			return fmt.Errorf("sft: evaluation is asked for, but %s has no eval.jsonl, test.jsonl or validation.jsonl", r.c.DatasetName)
		}
		if r.eval, stats, err = r.text.examples(r.ctx, files.eval, r.c.MaxEvalSamples, &r.c); err != nil {
			return err
		}
		r.say.dataset("eval", files.eval, stats)
		return nil
	}()
	return agree(r.work, r.group, err)
}

// fits compares the settings with the model's, before the time for tokenising and loading is spent.
func (r *run) fits() error {
	cfg, err := modelio.ReadConfig(r.c.ModelNameOrPath)
	if err != nil {
		return err
	}
	r.text.vocab = cfg.VocabSize
	for _, f := range []struct {
		name  string
		value int
	}{{"max_length", r.c.MaxLength}, {"pad_to_multiple_of", r.c.PadToMultipleOf}} {
		if limit := cfg.MaxPositionEmbeddings; f.value > limit {
			return fmt.Errorf("sft: %s is %d, but the model of %s takes at most %d tokens (max_position_embeddings)", f.name, f.value, r.c.ModelNameOrPath, limit)
		}
	}
	return nil
}

func (r *run) build() error {
	o := ModelOptions{
		Checkpointing: r.c.GradCheckpointed || r.sharding.checkpointing, Seed: r.c.Seed, Progress: r.say.loading,
		FSDP: r.sharding.config, WrapKinds: r.sharding.kinds, LocalRanks: r.o.Env.LocalWorldSize,
	}
	if r.c.Use4Bit {
		o.Quant = &quant.Config{Type: r.c.QuantType, DoubleQuant: r.c.NestedQuant}
	}
	if r.c.UseLoRA {
		o.LoRA = &peft.Config{
			R: r.c.LoRAR, LoRAAlpha: r.c.LoRAAlpha, LoRADropout: r.c.LoRADropout, TargetModules: r.c.targets(),
			UseRSLoRA: r.c.UseRSLoRA, BaseModel: r.c.ModelNameOrPath,
		}
	}
	built, err := Build(r.work, r.c.ModelNameOrPath, r.group, o)
	if err != nil { // the others may be in collectives of loading: to agree would be another one
		return err
	}
	if limit := built.Model.Config.MaxPositionEmbeddings; r.c.MaxLength > limit {
		err = fmt.Errorf("sft: max_length is %d, but the model of %s takes at most %d tokens (max_position_embeddings)", r.c.MaxLength, r.c.ModelNameOrPath, limit)
	}
	if err := agree(r.work, r.group, err); err != nil {
		return err
	}
	r.built = built
	r.say.model(built, r.group)
	r.say.sharding(r.sharding, built)
	return nil
}

// plan counts the steps and makes what drives them.
func (r *run) plan() error {
	sampler, err := r.sampler(r.train, r.c.TrainBatchSize, false)
	if err != nil {
		return err
	}
	batches := sampler.StepsPerEpoch()
	r.perEpoch = (batches + r.c.AccumulateSteps - 1) / r.c.AccumulateSteps
	if r.steps = r.c.MaxSteps; r.steps < 1 {
		r.steps = max(1, int(r.c.NumTrainEpochs*float64(r.perEpoch)+0.5))
	}
	factor, err := schedule.New(r.c.LRSchedulerType, schedule.Options{
		Warmup: r.c.WarmupSteps, WarmupRatio: r.c.WarmupRatio, Total: r.steps, BaseLR: r.c.LearningRate,
	})
	if err != nil {
		return fmt.Errorf("sft: lr_scheduler_type: %w", err)
	}
	opt, err := r.built.optimizer(&r.c)
	if err != nil {
		return err
	}
	r.trainer = &Trainer{
		Model: r.built.Model, Sharded: r.built.Sharded, Optimizer: opt, Schedule: factor, MaxGradNorm: r.c.MaxGradNorm,
		Generator: torch.NewGenerator(r.c.Seed + 1 + int64(r.group.Rank())),
	}
	return nil
}

func (r *run) sampler(examples data.Examples, batch int, evaluation bool) (*data.Sampler, error) {
	cfg := data.SamplerConfig{
		Rows: len(examples), BatchSize: batch, World: r.group.Size(), Rank: r.group.Rank(), Seed: uint64(r.c.Seed),
	}
	switch {
	case evaluation:
		cfg.InOrder, cfg.Tail = true, data.TailShort
	case r.c.DropLast:
		cfg.Tail = data.TailDrop
	}
	if r.c.GroupByLength && !evaluation {
		cfg.Lengths = examples.Lengths()
	}
	s, err := data.NewSampler(cfg)
	if err != nil {
		return nil, fmt.Errorf("sft: %w", err)
	}
	return s, nil
}

func (r *run) collate() data.CollateOptions {
	o := data.CollateOptions{PadToMultipleOf: r.c.PadToMultipleOf}
	pad, ok := r.text.tokenizer.PAD()
	if !ok || int(pad) >= r.text.vocab { // a padding token that was added later may have no embedding
		pad, ok = r.text.tokenizer.EOS()
	}
	if ok && int(pad) < r.text.vocab {
		o.PadID = pad
	}
	return o
}

// loop makes the steps, with evaluations and checkpoints between them.
func (r *run) loop() error {
	begin := time.Now()
	tokens := int64(0)
	evalEvery, saveEvery := r.c.evalEvery(r.perEpoch), r.c.saveEvery(r.steps, r.perEpoch)
	for r.trainer.StepsDone() < r.steps {
		batches, err := r.nextBatches()
		if err != nil {
			return err
		}
		s, err := r.trainer.Step(r.work, batches, r.ctx.Err() != nil)
		if err != nil {
			return err
		}
		r.position = batches[len(batches)-1].Position
		tokens += s.Tokens
		r.result.TrainLoss = s.Loss
		r.say.step(s, float64(s.Step)/float64(r.perEpoch))
		if r.eval != nil && evalEvery > 0 && s.Step%evalEvery == 0 && s.Step < r.steps && !s.Stop {
			if _, err := r.evaluate(); err != nil {
				return err
			}
		}
		r.result.Stopped = s.Stop && s.Step < r.steps
		// The last step is saved after the evaluation that follows it.
		if r.result.Stopped || saveEvery > 0 && s.Step%saveEvery == 0 && s.Step < r.steps {
			if err := r.save(); err != nil {
				return err
			}
		}
		if r.result.Stopped {
			break
		}
	}
	r.result.Steps = r.trainer.StepsDone()
	r.result.TrainSeconds = time.Since(begin).Seconds()
	if r.result.TrainSeconds > 0 {
		r.result.TokensPerSec = float64(tokens) / r.result.TrainSeconds
	}
	return nil
}

// nextBatches takes the micro-batches of one optimiser step. The last step of an epoch may have fewer.
func (r *run) nextBatches() ([]data.Batch, error) {
	var list []data.Batch
	for len(list) < r.c.AccumulateSteps {
		b, err := r.loader.Next(r.work)
		if err != nil {
			return nil, fmt.Errorf("sft: next batch: %w", err)
		}
		list = append(list, b)
		if b.Position.Index == 0 { // the batch was the last of its epoch
			break
		}
	}
	return list, nil
}

// evaluate measures the loss on the evaluation split; nil if somebody asked to stop meanwhile.
func (r *run) evaluate() (*float64, error) {
	sampler, err := r.sampler(r.eval, r.c.EvalBatchSize, true)
	if err != nil {
		return nil, err
	}
	total := sampler.StepsPerEpoch()
	loader := data.NewLoader(r.eval, sampler, data.LoaderConfig{Collate: r.collate(), Epochs: 1})
	defer loader.Close()
	next := func(context.Context) (data.Batch, error) { return loader.Next(r.work) }
	loss, err := r.trainer.Evaluate(r.work, next, EvaluateOptions{
		Stop:     func() bool { return r.ctx.Err() != nil },
		Progress: func(done int) { r.say.evaluating(done, total) },
	})
	if errors.Is(err, ErrStopped) { // on all ranks; the step or the save that comes next ends the run
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r.evaluatedAt, r.evalLoss = r.trainer.StepsDone(), &loss
	r.say.evaluated(r.trainer.StepsDone(), float64(r.trainer.StepsDone())/float64(r.perEpoch), loss)
	return &loss, nil
}

// finish evaluates, saves the result and tells where it is.
func (r *run) finish() (*Result, error) {
	if r.eval != nil && !r.result.Stopped {
		var err error
		if r.result.EvalAfter, err = r.evaluate(); err != nil {
			return nil, err
		}
	}
	if r.c.SaveStrategy != "no" && r.saved != r.trainer.StepsDone() {
		if err := r.save(); err != nil {
			return nil, err
		}
	}
	if err := r.flush(); err != nil {
		return nil, err
	}
	r.result.Checkpoint = r.savedDir
	if !r.result.Stopped {
		if err := r.loadBest(); err != nil {
			return nil, err
		}
		if err := r.saveResult(); err != nil {
			return nil, err
		}
	}
	peaks := make([]float64, r.group.Size())
	peaks[r.group.Rank()] = float64(PeakRSS())
	peaks, err := sumOverRanks(r.work, r.group, peaks...)
	if err != nil {
		return nil, err
	}
	for _, p := range peaks {
		r.result.PeakRSSBytes = append(r.result.PeakRSSBytes, int64(p))
	}
	r.result.Metrics = r.c.metricsPath()
	if err := r.group0(func() error { return r.say.summary(&r.c, &r.result) }); err != nil {
		return nil, err
	}
	return &r.result, nil
}

func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && len(rel) < len(path) {
		return rel
	}
	return path
}
