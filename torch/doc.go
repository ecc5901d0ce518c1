// Package torch binds libtorch's tensors and autograd for Go.
//
// # Operators and errors
//
// Operators are methods named as in PyTorch, in Go case: x.MatMul(w), x.Sum(), x.Narrow(0, 2, 3). A fault in their
// arguments panics with a *Error that names the operator and the shapes, so that formulas stay readable. Try turns
// exactly those panics into an error; packages above this one call it at their borders. Functions that do I/O or wait
// return errors.
//
// # Memory
//
// Go's collector does not see the memory behind a Tensor. A Scope frees it promptly:
//
//	step := torch.NewScope(nil)
//	defer step.Close()
//	x := step.Own(torch.FromSlice(values, 2, 3))
//	y := x.MatMul(w.In(step)) // y belongs to step as well
//
// The result of an operator belongs to the innermost scope among its arguments, so everything computed from a step's
// batch dies with the step. Where no argument carries a scope (sums of parameters, optimiser states), In names one.
// A tensor in no scope lives until Free, or until the collector finds it unreachable.
//
// # Threads
//
// Grad mode and saved-tensor hooks are state of the OS thread in libtorch. NoGrad and the like lock the thread for their
// length and restore the state, and so do OnDevice and OnStream for a GPU. Libtorch also keeps buffers per thread, so heavy work should stay on few threads: a
// Worker is one.
package torch
