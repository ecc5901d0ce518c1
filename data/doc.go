// Package data turns rows of a JSONL file into the batches of a training step.
//
//	rows, err := data.Open("train.jsonl")                       // index and check every row
//	examples, stats, err := data.Tokenise(ctx, rows, enc, opts)  // ids and labels
//	examples, packed, err := data.Pack(examples, data.PackOptions{Length: 2048})
//	sampler, err := data.NewSampler(data.SamplerConfig{Rows: len(examples), BatchSize: 2, World: 8, Rank: rank})
//	loader := data.NewLoader(data.Examples(examples), sampler, data.LoaderConfig{})
//	batch, err := loader.Next(ctx)
//
// A row has one of four shapes, the same in the whole file: {"messages": […]}, {"prompt": …, "completion": …},
// {"text": …} or {"input_ids": […], "labels": […]}. Further fields are ignored.
//
// The package knows neither a tokenizer nor a chat template: Encoders holds them as functions. Labels are unshifted
// (position t of a row is the target of position t-1, as in transformers), and IgnoreIndex marks positions without loss.
package data

// IgnoreIndex is the label of a position that does not count in the loss (PyTorch's ignore_index).
const IgnoreIndex = -100
