// Package gguf reads GGUF model files, versions 2 and 3, and dequantises their tensors.
//
// A GGUF file holds typed metadata (the model's hyper-parameters and its tokenizer), a table of tensors, and the
// tensors' bytes, most of them quantised in blocks along the innermost dimension. The reader maps the file into memory
// and bounds every count, length and offset by what the file really holds. Dequantisation follows the reference
// formulas of ggml to the bit, row by row, into a slice of the caller.
//
//	f, err := gguf.Open("model.gguf")
//	...
//	defer f.Close()
//	layers, err := f.Uint("llama.block_count")
//	w, err := f.Tensor("blk.0.attn_q.weight")
//	rows := make([]float32, 16*w.RowLen())
//	err = w.Dequantize(rows, 0, 16) // rows 0..15
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
package gguf
