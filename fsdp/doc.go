// Package fsdp shards a model's parameters, gradients and optimiser state over the ranks of a process group, and gathers
// each unit of layers only while it computes: fully sharded data parallelism, after PyTorch's fully_shard (FSDP2).
//
//	model, err := fsdp.Wrap(net, group, fsdp.Config{Units: fsdp.ByKind("LlamaDecoderLayer")})
//	…
//	out := nn.Run(net, call, batch)            // gathers and frees unit by unit
//	out.Loss.Backward()                        // gathers again, reduce-scatters gradients
//	norm, err := model.ClipGradNorm(ctx, 1)    // collective
//	optimizer.Step()                           // on this rank's rows
//
// Each parameter is cut along dimension 0 into chunks of ceil(rows / ranks) rows; later ranks may own fewer rows, or none.
// Frozen parameters of any type may share a unit with trainable ones: units are gathered as bytes.
//
// Every rank must run the same forwards and backwards in the same order. Collectives run in the order of the units,
// never in the order of a map.
package fsdp
