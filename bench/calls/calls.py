"""The Python side of bench/calls: reads lines "<case> <count>", and answers each with the nanoseconds that one of count
calls took."""

import gc
import sys
import time

import torch


def mul(n):
    for _ in range(n):
        torch.mul(x, y)


def scalar(n):
    for _ in range(n):
        torch.mul(x, 1.0)


def inplace(n):
    for _ in range(n):
        out.mul_(y)


def recorded(n):
    for _ in range(n):
        torch.mul(w, y)


def chain(n):
    for _ in range(n // 4):
        t = torch.mul(x, y)
        t = torch.add(t, x)
        t = torch.exp(t)
        t = torch.sub(t, y)


torch.set_num_threads(1)
x, y, out = (torch.full((1,), 1.0) for _ in range(3))
w = torch.full((1,), 1.0, requires_grad=True)
cases = {"mul": mul, "freed": mul, "scalar": scalar, "inplace": inplace, "recorded": recorded, "chain": chain}
gc.disable()
for line in sys.stdin:
    name, count = line.split()
    run, count = cases[name], int(count)
    start = time.perf_counter_ns()
    run(count)
    print((time.perf_counter_ns() - start) / count, flush=True)
