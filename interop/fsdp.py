"""Trains tiny/plain with PyTorch's FSDP2 on two ranks and moves the run between PyTorch and gofsdp. See torch.go.

    fsdp.py --goldens testdata/goldens --ours DIR --theirs DIR

Writes a checkpoint after two steps and the losses of the next three; goes on from the one that gofsdp wrote, with the losses
that gofsdp had; and turns gofsdp's into a file with dcp_to_torch_save. Exit status 1 if something differs.
"""

import argparse
import json
import os
import socket
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transformers
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

transformers.utils.logging.disable_progress_bar()

BEFORE, AFTER = 2, 3  # steps, as in torch.go
LR, DECAY = 1e-3, 0.01
TOLERANCE = 2e-5

parser = argparse.ArgumentParser()
for folder in ("goldens", "ours", "theirs"):
    parser.add_argument(f"--{folder}", type=Path, required=True)
args = parser.parse_args()


class Run:
    """One training run on this rank."""

    def __init__(self):
        self.model = AutoModelForCausalLM.from_pretrained(
            args.goldens / "tiny/plain", dtype=torch.float32, attn_implementation="eager"
        )
        for layer in self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=DECAY)
        self.ids = load_file(args.goldens / "tiny/plain/forward.safetensors")["input_ids"][:, :64].long()

    def steps(self, n):
        losses = []
        for _ in range(n):
            loss = self.model(self.ids, labels=self.ids, use_cache=False).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    # The folders and keys are Accelerate's: save_fsdp_model, load_fsdp_model and their likes for the optimiser.
    def save(self, folder):
        dcp.save({"model": self.model.state_dict()}, checkpoint_id=folder / "pytorch_model_fsdp_0")
        dcp.save({"optimizer": get_optimizer_state_dict(self.model, self.optimizer)}, checkpoint_id=folder / "optimizer_0")

    def load(self, folder):
        model = {"model": self.model.state_dict()}
        dcp.load(model, checkpoint_id=folder / "pytorch_model_fsdp_0")
        self.model.load_state_dict(model["model"])
        state = {"optimizer": get_optimizer_state_dict(self.model, self.optimizer)}
        dcp.load(state, checkpoint_id=folder / "optimizer_0")
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])


def rank(r, size, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(r), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    theirs = args.theirs / "fsdp"
    run = Run()
    before = run.steps(BEFORE)
    run.save(theirs / "checkpoint-2")
    losses = before + run.steps(AFTER)
    if r == 0:
        (theirs / "losses.json").write_text(json.dumps(losses))

    want = json.loads((args.ours / "fsdp/losses.json").read_text())
    run = Run()
    run.load(args.ours / "fsdp/checkpoint-2")
    got = run.steps(AFTER)
    worst = max(abs(a - b) for a, b in zip(got, want[BEFORE:], strict=True))
    assert worst <= TOLERANCE, f"losses {got}, gofsdp had {want[BEFORE:]}"
    if r == 0:
        print(f"ok    FSDP2 goes on from a checkpoint of gofsdp (losses differ by {worst:.1e})", flush=True)
    dist.destroy_process_group()


def to_file():
    folder, out = args.ours / "fsdp/checkpoint-2/pytorch_model_fsdp_0", args.theirs / "fsdp/ours.pt"
    dcp_to_torch_save(folder, out)
    state = torch.load(out, weights_only=True)["model"]
    want = load_file(args.goldens / "tiny/plain/model.safetensors")
    assert set(state) == set(want), set(state) ^ set(want)
    for name, tensor in want.items():
        assert state[name].shape == tensor.shape and (state[name] - tensor).abs().max() < 0.1, name
    print("ok    dcp_to_torch_save reads a checkpoint of gofsdp", flush=True)


def main():
    warnings.filterwarnings("ignore")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    (args.theirs / "fsdp").mkdir(parents=True, exist_ok=True)
    try:
        mp.spawn(rank, args=(2, port), nprocs=2)
        to_file()
    except Exception:
        print(f"FAIL  FSDP2 and gofsdp\n{traceback.format_exc()}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
