"""Writes dcp/: what torch.distributed.checkpoint makes of a model that FSDP2 shards over two ranks, in Accelerate's folders.

    python make_dcp.py
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

os.chdir(Path(__file__).parent)  # the files hold the path that they were written to
OUT = Path("dcp")


def rank(r, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29655", RANK=str(r), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = model.state_dict()
    dcp.save({"model": state}, checkpoint_id=OUT / "pytorch_model_fsdp_0")
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=OUT / "optimizer_0")
    full = {name: value.full_tensor() for name, value in state.items()}
    if r == 0:
        torch.save(full, OUT / "full.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank, args=(2,), nprocs=2)
