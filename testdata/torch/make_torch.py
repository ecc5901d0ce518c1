"""Writes nn.json, init.json and the .pt files of this folder with PyTorch 2.13 (CPU).

nn.json: layers and losses in float64: state dict, input, output for a fixed projection, gradients.
init.json: what initialisers draw in float32 after torch.manual_seed(7).
"""
import json
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

here = Path(__file__).parent


def dump(t):
    return {"shape": list(t.shape), "data": t.detach().double().flatten().tolist()}


def x_of(*shape):
    n = 1
    for d in shape:
        n *= d
    return torch.sin(torch.arange(1, n + 1, dtype=torch.float64) * 0.7).view(*shape)


cases = {}


def layer(name, module, *shape, eval_too=False):
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.cos(torch.arange(p.numel(), dtype=torch.float64) * 0.9 + i).view(p.shape) * 0.5 + 0.1)
    x = x_of(*shape).requires_grad_()
    case = {"state": {k: dump(v.clone()) for k, v in module.state_dict().items()}, "x": dump(x)}
    y = module(x)
    (y * x_of(*y.shape).cos()).sum().backward()
    case["y"] = dump(y)
    case["x_grad"] = dump(x.grad)
    case["grads"] = {k: dump(p.grad) for k, p in module.named_parameters()}
    case["after"] = {k: dump(v) for k, v in module.state_dict().items()}
    if eval_too:
        case["eval"] = dump(module.eval()(x_of(*shape)))
    cases[name] = case


layer("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), 2, 4, 7)
layer("conv2d", nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2)), 2, 3, 6, 5)
layer("conv2d_nobias", nn.Conv2d(2, 3, 3, bias=False), 1, 2, 5, 5)
layer("conv3d", nn.Conv3d(2, 2, 2, padding=1), 1, 2, 3, 2, 3)
layer("conv_transpose2d", nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2), 2, 4, 3, 2)
layer("batch_norm1d", nn.BatchNorm1d(3), 4, 3, eval_too=True)
layer("batch_norm2d", nn.BatchNorm2d(3, momentum=0.3, eps=1e-3), 2, 3, 2, 2, eval_too=True)
layer("batch_norm3d", nn.BatchNorm3d(2, momentum=None), 2, 2, 2, 1, 2, eval_too=True)
layer("batch_norm_plain", nn.BatchNorm2d(3, affine=False, track_running_stats=False), 2, 3, 2, 2, eval_too=True)
layer("layer_norm", nn.LayerNorm((3, 2)), 2, 3, 2)
layer("group_norm", nn.GroupNorm(2, 4), 2, 4, 3)
layer("sequential", nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2), nn.LogSoftmax(1)), 3, 5)
for name, module in {
    "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(0.2), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "softmax": nn.Softmax(1), "log_softmax": nn.LogSoftmax(1), "elu": nn.ELU(0.7),
    "softplus": nn.Softplus(), "flatten": nn.Flatten(),
    "max_pool1d": nn.MaxPool1d(2, 1, 1),
    "avg_pool1d": nn.AvgPool1d(2, 1, 1, count_include_pad=False),
}.items():
    layer(name, module, 2, 3, 4)
for name, module in {
    "max_pool2d": nn.MaxPool2d((2, 3), stride=2, padding=1, ceil_mode=True),
    "avg_pool2d": nn.AvgPool2d(2, divisor_override=3),
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d((2, 3)),
}.items():
    layer(name, module, 1, 2, 5, 4)

losses = {}


def loss(name, f, x, target):
    for reduction in ("none", "mean", "sum"):
        leaf = x.detach().clone().requires_grad_()
        y = f(leaf, target, reduction)
        y.sum().backward()
        losses[f"{name}/{reduction}"] = {"x": dump(x), "target": dump(target), "y": dump(y), "x_grad": dump(leaf.grad)}


logits, other = x_of(4, 3), x_of(4, 3).cos()
classes = torch.tensor([2, 0, -100, 1])
weight = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64)
loss("cross_entropy", lambda x, t, r: F.cross_entropy(x, t, weight, reduction=r, label_smoothing=0.1), logits, classes)
loss("cross_entropy_ignore", lambda x, t, r: F.cross_entropy(x, t, ignore_index=1, reduction=r), logits, torch.tensor([2, 0, 1, 1]))
loss("nll", lambda x, t, r: F.nll_loss(x, t, weight, reduction=r), logits.log_softmax(1), classes)
loss("mse", lambda x, t, r: F.mse_loss(x, t, reduction=r), logits, other)
loss("l1", lambda x, t, r: F.l1_loss(x, t, reduction=r), logits, other)
loss("smooth_l1", lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.5), logits, other)
loss("huber", lambda x, t, r: F.huber_loss(x, t, reduction=r, delta=0.5), logits, other)
loss("bce", lambda x, t, r: F.binary_cross_entropy(x, t, reduction=r), logits.sigmoid(), other.sigmoid())
loss("bce_logits", lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, pos_weight=weight, reduction=r), logits, other.sigmoid())
loss("kl_div", lambda x, t, r: F.kl_div(x, t, reduction=r), logits.log_softmax(1), other.softmax(1))
loss("kl_div_log", lambda x, t, r: F.kl_div(x, t, reduction=r, log_target=True), logits.log_softmax(1), other.log_softmax(1))
(here / "nn.json").write_text(json.dumps({"torch": torch.__version__, "layers": cases, "losses": losses}, separators=(",", ":")) + "\n")

draws = {}


def draw(name, f):
    torch.manual_seed(7)
    draws[name] = {k: dump(v) for k, v in f().items()}


def init(f, *args, **kw):
    def go():
        t = torch.empty(4, 3, 2)
        f(t, *args, **kw)
        return {"t": t}
    return go


draw("uniform", init(nn.init.uniform_, -2, 3))
draw("normal", init(nn.init.normal_, 1, 2))
draw("trunc_normal", init(nn.init.trunc_normal_, 0.5, 2, -1, 1.5))
draw("trunc_normal_tail", init(nn.init.trunc_normal_, 0, 1, 2, 3))
draw("kaiming_uniform", init(nn.init.kaiming_uniform_, nonlinearity="relu"))
draw("kaiming_uniform_leaky_out", init(nn.init.kaiming_uniform_, a=0.3, mode="fan_out"))
draw("kaiming_normal", init(nn.init.kaiming_normal_, nonlinearity="tanh"))
draw("xavier_uniform", init(nn.init.xavier_uniform_, 0.8))
draw("xavier_normal", init(nn.init.xavier_normal_))
draw("model", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 2, 2), nn.Linear(4, 3), nn.Embedding(5, 2),
                                    nn.LayerNorm(3), nn.GroupNorm(1, 2)).state_dict())
(here / "init.json").write_text(json.dumps(draws, separators=(",", ":")) + "\n")


# --- PyTorch's own files ---
def values(dtype, *shape):
    n = torch.Size(shape).numel()
    t = torch.arange(1, n + 1).view(shape)
    return (t % 2 == 0) if dtype == torch.bool else t.to(dtype)


dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16]
state = {str(d).removeprefix("torch."): values(d, 2, 3) for d in dtypes}
base = values(torch.float32, 3, 4)
state |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "transposed": base.t(), "part": base[1:, 1:3], "tied": base,
          "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 3), "parameter": nn.Parameter(values(torch.float32, 2, 2))}
torch.save(state, here / "tensors.pt")
model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
torch.manual_seed(7)
torch.save({"epoch": 3, "lr": 0.5, "name": "run", "args": [1, (2, None, True)], "big": 2**70, "model": model.state_dict(),
            "optimizer": torch.optim.AdamW(model.parameters()).state_dict()}, here / "checkpoint.pt")
torch.save(values(torch.float32, 2, 2), here / "single.pt")
torch.save(model, here / "module.pt")  # pickles the class itself: refused
torch.save({"w": values(torch.float32, 2)}, here / "legacy.pt", _use_new_zipfile_serialization=False)
