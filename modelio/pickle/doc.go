// Package pickle reads, and for checkpoints writes, PyTorch's .pt and .bin files: the zip archives that torch.save has
// written since version 1.6.
//
// A pickle is a program for a small stack machine that can import and call any Python function. This package runs only
// the part of it that tensors, numbers, strings, lists, dicts and tuples need, and knows by name the few functions that
// rebuild tensors. Every other global is refused with an error that names it: nothing of a file is ever executed.
//
// Files are mapped; a tensor's bytes are read when they are asked for.
package pickle
