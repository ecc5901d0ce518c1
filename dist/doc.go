// Package dist is about being one of several ranks: who this process is among them (Env), how the ranks meet
// (stores) and how they exchange tensors (process groups).
//
// The environment variables are those of torchrun, so a Go program starts under `torchrun --no-python`, Slurm,
// Kubeflow's trainer and MPI launchers as it is; package launch starts ranks without any of them.
package dist
