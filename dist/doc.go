// Package dist is about being one of several ranks: who this process is among them (Env), how the ranks meet
// (stores) and how they exchange tensors (process groups).
//
// The environment variables are those of torchrun, so a Go program starts under `torchrun --no-python`, Slurm,
// Kubeflow's trainer and MPI launchers as it is; package launch starts ranks without any of them.
//
// A Mesh arranges the ranks of a group in named dimensions. Counted counts what a group sends, per kind of collective and
// per label (WithLabel); Fake is one rank of a job that does not exist, to count at any size. A collective that does not
// finish ends on every rank with a *Stall, which names the collective, its label and the ranks that are missing.
package dist
