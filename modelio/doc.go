// Package modelio reads and writes model folders in the Hugging Face layout, and GGUF files as if they were one.
//
// A folder holds config.json and either model.safetensors or shards with model.safetensors.index.json (or, where there are
// none, pytorch_model.bin or its shards, see package pickle). Open reads both
// and gives the configuration and the weights, under the names that the files carry ("model.layers.0.mlp.up_proj.weight").
// Nothing is loaded up front: files are mapped, and a view reads the rows that are asked for, so a rank touches only the
// bytes that it will own. A .gguf file opens in the same way; its rows are dequantised to float32 as they are read.
//
//	m, err := modelio.Open("SmolLM2-135M-Instruct")
//	...
//	defer m.Close()
//	w, err := m.Weights.Tensor("model.layers.0.self_attn.q_proj.weight")
//	mine, err := w.Rows(lo, hi) // this rank's rows
//	err = w.Release(lo, hi) // once they are copied
//
// The file formats themselves are in the packages safetensors, gguf, pickle (.pt, .bin) and dcp
// (torch.distributed.checkpoint); package convert turns a GGUF file into a folder.
package modelio
