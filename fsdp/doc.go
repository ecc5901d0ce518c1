// Package fsdp shards a model's parameters, gradients and optimiser state over the ranks of a process group, and gathers
// each unit of layers only while it computes: fully sharded data parallelism, after PyTorch's fully_shard (FSDP2), with the
// options of FullyShardedDataParallel (FSDP1).
//
//	model, err := fsdp.Wrap(net, group, fsdp.Config{Units: fsdp.ByKind("LlamaDecoderLayer")})
//	…
//	out := nn.Run(net, call, batch)            // gathers and frees unit by unit
//	out.Loss.Backward()                        // gathers again, reduce-scatters gradients
//	norm, err := model.ClipGradNorm(ctx, 1)    // collective
//	optimizer.Step()                           // on this rank's rows
//
// Each parameter is cut along dimension 0 into chunks of ceil(rows / ranks) rows; later ranks may own fewer rows, or none.
// Frozen parameters of any type may share a unit with trainable ones of several: units are gathered as bytes, and gradients
// reduced by type.
//
// Every rank must run the same forwards and backwards in the same order. Collectives run in the order of the units,
// never in the order of a map. A parameter that only some ranks used gets the sum of their gradients, one that none used
// keeps a nil gradient; Config.Branches lets ranks leave whole units out.
//
// # Options of PyTorch
//
//	sharding_strategy                     Config.Strategy, ParseStrategy; hybrid ones with WrapMesh
//	reshard_after_forward                 Config.Reshard, ReshardSize, UnitOptions.Reshard
//	auto_wrap_policy                      Config.Units: ByKind, ByType, BySize, ByAdapter, Any; Config.Together
//	mp_policy, MixedPrecision             Config.Precision, UnitOptions.Precision
//	cpu_offload, offload_policy           Config.Offload; activations: Model.SaveOnCPU
//	backward_prefetch, forward_prefetch   Config.Prefetch; SetForwardPrefetch, SetBackwardPrefetch
//	limit_all_gathers                     Config.Prefetch.Limit
//	ignored_modules, ignored_params       Config.Ignore
//	sync_module_states                    Config.SyncModuleStates
//	param_init_fn, to_empty               Model.Materialize
//	no_sync, set_requires_*, set_is_last  Model.Accumulate, Model.During
//	set_gradient_divide_factor            Config.DivideFactor
//	set_unshard_in_backward               UnitOptions.NoBackwardUnshard
//	unshard, reshard                      Model.Unshard, UnshardAsync, Reshard
//	reset_iter_state                      Model.Reset
//	clip_grad_norm_                       Model.ClipGradNorm, Model.Clip
//	set_custom_*, set_all_reduce_hook     Config.Comm
//	fsdp_config of an Accelerate file     ParseOptions
package fsdp
