// Package quant keeps the frozen weights of linear layers in four bits: NF4 and FP4 with scales per block, as QLoRA and
// bitsandbytes define them, bit for bit.
//
//	n, err := quant.Quantize(model, quant.Config{Type: quant.NF4, DoubleQuant: true}, nil)
//
// A model on the meta device is quantised while it loads, tensor by tensor; one that has values is quantised in place.
//
// A weight of shape (out, in) becomes codes and scales whose first dimension is out where the sizes allow, so that a
// sharded model keeps the scales with their rows. Only the small tables of double quantisation are held by every rank.
package quant
