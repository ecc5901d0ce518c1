// Package checkpoint saves the state of a sharded training run and resumes it at any number of ranks.
//
//	dir, err := checkpoint.Save(ctx, group, "out", step, checkpoint.Snapshot{
//		Model:     checkpoint.ModelEntries(model, nil),
//		Optimizer: optimizer, // from checkpoint.OptimizerEntries
//		RankState: []checkpoint.Entry{checkpoint.Whole("rng", rng)},
//		Trainer:   state,
//	}, checkpoint.SaveOptions{TotalLimit: 3})
//	…
//	dir, step, err := checkpoint.Latest("out")
//	c, err := checkpoint.Open(dir)
//	defer c.Close()
//	err = c.ReadTrainer(&state)
//	err = c.Load(ctx, checkpoint.Model, checkpoint.ModelEntries(model, nil))
//
// Saver does the same in the background, while training goes on. Export joins the shards into a model folder.
//
// # Format
//
// A checkpoint is the folder checkpoint-<step>:
//
//	checkpoint.json                                     the manifest, written last
//	trainer_state.json                                  the trainer's own state, the same for all ranks
//	model/shard-00001-model-00001-of-00001.safetensors  what rank 0 holds of the model; ranks count from 1 here
//	optimizer/shard-00001-optimizer-00001-of-00001.safetensors
//	rank_state/shard-00001-rank_state-00001-of-00001.safetensors
//
// The manifest holds the format version, the step, the number of ranks, and every file with its size, its number of tensors
// and the CRC-32C of every 4 MiB of it. Each model and optimiser file holds rows (dimension 0) of tensors. Its header says which:
//
//	"__metadata__": {"format": "pt", "DCP_VERSION": "1.0",
//	                 "DCP_SHARDING_INFO": "{\"model.norm.weight\": {\"saved_offsets\": [16]}, …}"}
//
// This is the layout of torch.distributed.checkpoint's HuggingFaceStorageWriter, so its HuggingFaceStorageReader reads
// the folder model. Rows that several ranks hold alike (scalars, replicas) are in the file of the first of these ranks; a
// rank without rows of its own writes no file.
//
// With SaveOptions.Format DCP the tensors are in PyTorch's own format instead, in Accelerate's folders, and the manifest
// covers these files as well:
//
//	pytorch_model_fsdp_0/.metadata, __0_0.distcp, …     package dcp describes them
//	optimizer_0/.metadata, __0_0.distcp, …
//
// Open reads both, and checkpoints of Accelerate and of the Trainer of transformers, which have no manifest: the same
// folders, or pytorch_model_fsdp.bin and optimizer.bin. Names are taken as PEFT writes them to files, without what wrappers
// put into them.
//
// # Names
//
// Model entries have the parameters' names in the root module. The optimiser's are <parameter>.<state>, such as
// model.norm.weight.exp_avg, with PyTorch's names of the states.
//
// # What is safe
//
// Files are written to tmp-checkpoint-<step> and flushed to disk; only when every rank has done so does rank 0 write the
// manifest and rename the folder. So a folder checkpoint-<step> is complete, whenever the processes die, and an older one
// is deleted only after the new one is in place. Bytes that have changed since are noticed when they are loaded: a rank
// checks the blocks that it reads. When one rank fails, all ranks return an error and what was there before
// stays as it was.
package checkpoint
