// Package dcp reads and writes the folders of torch.distributed.checkpoint: a file .metadata, which says what there is,
// and files __0_0.distcp, __1_0.distcp, … with the parts of tensors that the ranks have saved.
//
//	f, err := dcp.Open("checkpoint-100/pytorch_model_fsdp_0", nil)
//	defer f.Close()
//	t, err := f.Tensor("model.norm.weight")
//	rows, err := t.Rows(0, 16)          // put together from the parts that hold them
//
// # Format
//
// .metadata is a pickle of torch.distributed.checkpoint.metadata.Metadata. It maps each name to its shape, dtype and parts
// (offsets and sizes), or says that it is a plain value; each part to a range of bytes in a file; and each name to the keys
// that lead to it in the nested dict that was saved, such as ("optimizer", "state", "norm.weight", "exp_avg"). A range of
// bytes is what torch.save writes for one tensor or value.
//
// The pickles are run under the rules of package pickle: nothing of a file is executed, and a class or function that is
// not expected is an error that names it.
//
// .metadata is written last: a folder without it is incomplete.
package dcp
