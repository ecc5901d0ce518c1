package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/torch"
	"golang.org/x/term"
)

// mergeCmd is `gofsdp merge`.
type mergeCmd struct {
	Base         string   `arg:"" name:"base" help:"The base model's folder."`
	Adapter      string   `arg:"" name:"adapter" help:"The adapter's folder (adapter_config.json, adapter_model.safetensors)."`
	Out          string   `arg:"" name:"out" help:"The model folder to write; it must not exist or be empty."`
	DType        string   `name:"dtype" enum:"bf16,f16,f32" default:"bf16" help:"Type of the weights: bf16, f16 or f32."`
	MaxShardSize byteSize `name:"max_shard_size" default:"5GB" help:"Largest weights file, such as 500MB or 2GiB."`
	Use4Bit      bool     `name:"use_4bit_quantization" negatable:"" help:"Merge into the weights as a 4-bit training saw them, quantised and back, as PEFT's merge_and_unload does with a 4-bit model; without, into the base folder's own."`
	QuantType    string   `name:"bnb_4bit_quant_type" default:"nf4" enum:"nf4,fp4" help:"4-bit data type."`
	NestedQuant  bool     `name:"use_nested_quant" negatable:"" help:"The scales of the 4-bit weights were quantised as well."`
}

// Run merges.
func (c *mergeCmd) Run(ctx context.Context) error {
	if err := torch.LoadLibrary(); err != nil {
		return err
	}
	dtype, err := torch.ParseDType(strings.ToUpper(c.DType))
	if err != nil {
		return err
	}
	o := peft.MergeOptions{DType: dtype, MaxShardBytes: int64(c.MaxShardSize)}
	if c.Use4Bit {
		o.Quant = &quant.Config{Type: c.QuantType, DoubleQuant: c.NestedQuant}
	}
	if terminal := term.IsTerminal(int(os.Stderr.Fd())); terminal {
		o.Progress = func(done, total int) {
			fmt.Fprintf(os.Stderr, "\rmerging: %d of %d tensors\033[K", done, total)
			if done == total {
				fmt.Fprint(os.Stderr, "\r\033[K")
			}
		}
	}
	if err := peft.MergeFolder(ctx, c.Base, c.Adapter, c.Out, o); err != nil {
		return err
	}
	return wrote(c.Out)
}

// mergeWeightsCmd is `gofsdp merge-weights`.
type mergeWeightsCmd struct {
	Dir          string   `arg:"" name:"dir" help:"A checkpoint, its folder pytorch_model_fsdp_0 or optimizer_0, or the folder above several checkpoints, of which the newest is taken."`
	Out          string   `arg:"" name:"out" help:"The folder to write; it must not exist or be empty."`
	DType        string   `name:"dtype" enum:"bf16,f16,f32,keep" default:"bf16" help:"Type of a model's weights: bf16, f16, f32, or keep for what the checkpoint has. The optimiser's states are kept."`
	MaxShardSize byteSize `name:"max_shard_size" default:"5GB" help:"Largest weights file, such as 500MB or 2GiB."`
	Base         string   `name:"model_name_or_path" placeholder:"DIR" help:"Copy configuration and tokenizer from this model folder."`
	Remove       bool     `name:"remove_checkpoint_dir" help:"Delete the checkpoint once the result is complete."`
}

// Run merges the shards.
func (c *mergeWeightsCmd) Run(ctx context.Context) error {
	if err := torch.LoadLibrary(); err != nil {
		return err
	}
	dir, kind, err := checkpoint.Locate(c.Dir)
	if err != nil {
		return err
	}
	o := checkpoint.ExportOptions{MaxShardBytes: int64(c.MaxShardSize), Base: c.Base}
	if c.DType != "keep" && kind == checkpoint.Model {
		if o.DType, err = torch.ParseDType(strings.ToUpper(c.DType)); err != nil {
			return err
		}
	}
	show := newMeter(os.Stderr, term.IsTerminal(int(os.Stderr.Fd())))
	defer show.close()
	o.Progress = func(done, total int64) { show.at("merge", done, total) }
	ckpt, err := checkpoint.Open(dir)
	if err != nil {
		return err
	}
	err = ckpt.Export(ctx, kind, c.Out, o)
	if err = errors.Join(err, ckpt.Close()); err != nil {
		return err
	}
	show.close()
	fmt.Printf("merged %s into %s\n", dir, c.Out)
	if c.Remove {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("merge-weights: %w", err)
		}
	}
	return nil
}

// wrote says what is in a model folder now.
func wrote(dir string) error {
	state, err := describeFolder(dir)
	if err != nil {
		return err
	}
	fmt.Printf("wrote %s (%s)\n", dir, state)
	return nil
}
