// Package safetensors reads and writes the safetensors file format.
//
// A file is an 8-byte little-endian header length, a JSON header and the tensors' bytes. The header maps each name to
// its dtype, shape and byte range, and may hold a "__metadata__" object of strings. The reader maps the file into
// memory and trusts nothing in it: the ranges must cover the data exactly, without a hole or an overlap, and every
// shape must agree with its range. The writer streams: it lays all tensors out first, takes their bytes in any order,
// and gives the file its name only when every byte has been written.
//
//	f, err := safetensors.Open("model.safetensors")
//	...
//	defer f.Close()
//	w, err := f.Tensor("model.norm.weight") // w.Data is mapped, nothing has been read yet
//	rows := w.Rows(lo, hi)                  // the bytes of a range of rows
//	f.Release(w)                            // hands the pages back
//
// Format: https://github.com/huggingface/safetensors#format
package safetensors
