"""QLoRA with PyTorch FSDP2, PEFT and bitsandbytes on CPU ranks: what `gofsdp fixed-steps` is measured against.

Both programs take the same model folder, the same batches and the same initial adapter, compute in fp32 and report in the
same form, as JSON lines: rank 0 prints one per optimiser step, and every rank one at its end.

    torchrun --nproc_per_node 2 qlora_fsdp2.py --model DIR --batches FILE --lora-init FILE --quant nf4 --steps 5

step          from 0
loss          mean over the ranks; loss_rank is rank 0's own
grad_norm     of all adapter gradients (nothing is clipped)
t, cpu_s      seconds of the step on rank 0: by the clock, and of CPU in all threads of the process
peak_rss_mib  largest resident size of the process
start_to_first_step_s
              from GOFSDP_START_UNIX_NS (the launch), or else the start of this process, to the end of the first step
"""

import argparse
import json
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.distributed as dist
import transformers
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def arguments():
    parser = argparse.ArgumentParser(description="QLoRA with FSDP2 on fixed batches")
    parser.add_argument("--model", required=True, help="model folder in the layout of transformers")
    parser.add_argument("--batches", required=True, help="safetensors file with input_ids [steps, ranks, length]")
    parser.add_argument("--lora-init", required=True, help="safetensors file with the initial lora_A weights; lora_B is zero")
    parser.add_argument("--quant", default="nf4", choices=["none", "nf4"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    return parser.parse_args()


def started_at():
    """Unix time, in seconds, from which the start-up is counted."""
    if ns := os.environ.get("GOFSDP_START_UNIX_NS"):
        return int(ns) / 1e9
    # Field 22 of stat is the start of the process in clock ticks since boot; field 2 may hold spaces.
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
        age = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def peak_rss_mib():
    with open("/proc/self/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return round(kib / 1024, 1)


def report(**row):
    # A single write per line: the ranks share the standard output.
    os.write(1, (json.dumps({k: round(v, 7) for k, v in row.items()}) + "\n").encode())


def build(args):
    options = {}
    if args.quant == "nf4":
        options["device_map"] = {"": "cpu"}
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa", **options)
    model.config.use_cache = False
    model.requires_grad_(False)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    adapter = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")
    model = get_peft_model(model, adapter, autocast_adapter_dtype=False)
    set_peft_model_state_dict(model, load_file(args.lora_init))
    for layer in model.get_base_model().model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model.train()


def main():
    args = arguments()
    start = started_at()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(args)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    batches = load_file(args.batches)["input_ids"].long()
    if args.steps > len(batches) or batches.shape[1] != world:
        raise SystemExit(f"{args.batches} holds {tuple(batches.shape)}: too few for {args.steps} steps on {world} ranks")

    first_step_s = None
    for step in range(args.steps):
        ids = batches[step, rank].unsqueeze(0)
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in trained])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if step == 0:
            first_step_s = time.time() - start
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            report(step=step, loss=mean.item() / world, loss_rank=loss.item(), grad_norm=norm.item(), t=wall, cpu_s=cpu)

    report(rank=rank, peak_rss_mib=peak_rss_mib(), start_to_first_step_s=first_step_s)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
