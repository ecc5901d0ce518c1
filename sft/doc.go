// Package sft fine-tunes language models on conversations and texts: supervised fine-tuning.
//
// Run does a whole run as the command `gofsdp sft` does it: data, model, training, evaluation, checkpoints, result. A
// service that brings its own loop builds a model with Build and makes optimiser steps with Trainer.Step.
//
// How the model is sharded and in which precision it computes comes from Config (fsdp, fsdp_config, bf16) and, behind it, from
// what a launcher handed over (RunOptions.Launcher). Without either, every decoder layer is a unit, fully sharded, in fp32.
//
// Every rank runs the same program. What all ranks must agree on (to stop, to save, whether a gradient is finite) is
// decided from values that travelled in a collective.
package sft
