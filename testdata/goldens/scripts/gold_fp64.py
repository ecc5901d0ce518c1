import os; BASE = os.environ["BASE"]  # the folder that holds the model folder and goldens/
"""The training goldens once more in fp64: tiny/*/{fp64.json,params_after10_fp64.safetensors} and
smollm2_train/adapter_after20_fp64_{fp32,nf4}.safetensors (named after the base weights; results rounded to fp32).
After AdamW's steps they tell rounding from faults: where a gradient is near 0, rounding decides how far an element goes.
transformers computes norms, softmax and loss in fp32 whatever the model's type: replaced here. RoPE tables stay fp32."""
import json, sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
import transformers.models.llama.modeling_llama as llama
torch.set_num_threads(1)
F = torch.nn.functional


def norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def loss(logits, labels, vocab_size, **_):
    return F.cross_entropy(logits[:, :-1].reshape(-1, vocab_size), labels[:, 1:].reshape(-1))


llama.LlamaRMSNorm.forward = norm


def load(folder):
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")
    m.loss_function, m.config.use_cache = loss, False
    return m.train()


def rounded(tensors):
    return {k: v.detach().float().contiguous() for k, v in tensors.items()}


def tiny(name):
    D = f"{BASE}/goldens/tiny/{name}"
    m, b = load(D), load_file(D + "/forward.safetensors")
    batch = {k: b[k].long() for k in ("input_ids", "attention_mask", "labels")}
    opt = torch.optim.AdamW(m.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    for _ in range(10):
        opt.zero_grad()
        l = m(**batch).loss
        l.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)))
        opt.step()
        losses.append(l.item())
    json.dump({"losses": losses, "grad_norms_before_clip": norms, "loss_after": m(**batch).loss.item()},
              open(D + "/fp64.json", "w"), indent=1)
    save_file(rounded(dict(m.named_parameters())), D + "/params_after10_fp64.safetensors")
    print(name, losses)


def dequantised(m):
    """Puts the values that the NF4 weights stand for (block 64, double quantisation, fp32) in the linear layers."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit
    for n, mod in m.named_modules():
        if isinstance(mod, torch.nn.Linear) and n != "lm_head":
            q, state = quantize_4bit(mod.weight.data.float(), blocksize=64, compress_statistics=True, quant_type="nf4")
            mod.weight.data = dequantize_4bit(q, state).double()


def smol(base):
    from peft import LoraConfig, get_peft_model
    G = BASE + "/goldens/smollm2_train"
    m = load(BASE + "/smollm2-135m-instruct")
    if base == "nf4":
        dequantised(m)
    m.requires_grad_(False)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    m = get_peft_model(m, LoraConfig(r=16, lora_alpha=16, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"),
                       autocast_adapter_dtype=False)
    init = load_file(G + "/lora_A_init.safetensors")
    for k, p in m.named_parameters():
        if "lora_A" in k:
            p.data = init[k.replace(".default", "")].double()
        elif "lora_B" in k:
            p.data = torch.zeros_like(p, dtype=torch.float64)
    params = {k.replace(".default", ""): p for k, p in m.named_parameters() if p.requires_grad}
    opt = torch.optim.AdamW(params.values(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for s, x in enumerate(load_file(G + "/batches.safetensors")["input_ids"].long()):
        opt.zero_grad()
        l = m(input_ids=x, labels=x).loss
        l.backward()
        opt.step()
        print(base, s, l.item(), flush=True)
    kept = {k: p for k, p in params.items() if any(f".layers.{i}." in k for i in (0, 15, 29))}
    save_file(rounded(kept), f"{G}/adapter_after20_fp64_{base}.safetensors")


for name in ("plain", "rope_llama3", "tied"):
    tiny(name)
for base in ("fp32", "nf4"):
    smol(base)
