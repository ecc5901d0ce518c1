"""Reads what gofsdp wrote with transformers, PEFT and torch.distributed.checkpoint, and writes folders for gofsdp to read.

    check.py --goldens testdata/goldens --ours DIR --theirs DIR

Prints one line per check; the exit status is 1 if one failed. See main.go for the whole.
"""

import argparse
import json
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

transformers.utils.logging.disable_progress_bar()
# What these libraries say of each other, and that a checkpoint is read by one process, which is meant.
warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

parser = argparse.ArgumentParser()
for folder in ("goldens", "ours", "theirs"):
    parser.add_argument(f"--{folder}", type=Path, required=True)
args = parser.parse_args()

PROMPT_LEN = 64  # as in read.go
TOLERANCE = 2e-5

checks = []


def check(name):
    def register(function):
        checks.append((name, function))
        return function

    return register


def close(got, want, what, tolerance=TOLERANCE):
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
    worst = (got - want).abs().max().item()
    assert worst <= tolerance, f"{what}: differs by {worst:.2e}, tolerance {tolerance:.0e}"


def load_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def tiny(name):
    return load_model(args.goldens / "tiny" / name)


def prompt():
    return load_file(args.goldens / "tiny/plain/forward.safetensors")["input_ids"][:, :PROMPT_LEN].long()


def expected_logits(folder):
    return load_file(folder / "expected" / "logits.safetensors")["logits"]


def load_adapter(base, folder):
    """A model with an adapter. Keys that are missing or left over are no error for PEFT, but here they are."""
    model = PeftModel.from_pretrained(load_model(base), folder)
    result = model.load_adapter(folder, "again")
    assert not result.unexpected_keys, result.unexpected_keys
    assert not [key for key in result.missing_keys if "lora" in key], result.missing_keys
    return model


def differ(model, base, what):
    change = (model - base).abs().max()
    assert change > 1e-2, f"{what}: changes the logits by {change:.2e} only"


def save_logits(model, folder):
    (folder / "expected").mkdir()
    save_file({"logits": model(prompt(), use_cache=False).logits.contiguous()}, folder / "expected" / "logits.safetensors")


@check("transformers loads the converted model, with the golden logits")
def converted_model():
    golden = load_file(args.goldens / "smollm2_logits/fp32.safetensors")
    model, info = AutoModelForCausalLM.from_pretrained(
        args.ours / "smollm2", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    logits = model(golden["input_ids"].long()[None], use_cache=False).logits[0]
    # The logits reach 40: another CPU adds in another order.
    close(logits.gather(1, golden["top20_indices"].long()), golden["top20_values"], "top 20 logits", 1e-3)
    close(logits.logsumexp(-1), golden["logsumexp"], "logsumexp", 1e-3)
    close(logits[-1], golden["last_logits"], "last logits", 1e-3)
    meta = json.loads((args.goldens / "smollm2_logits/meta.json").read_text())
    assert logits.argmax(-1).tolist() == meta["argmax_per_position"]
    assert AutoModelForCausalLM.from_pretrained(args.ours / "smollm2").dtype == torch.bfloat16


@check("transformers loads the converted tokenizer and its chat template")
def converted_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(args.ours / "smollm2")
    for case in json.loads((args.goldens / "tokenizer/strings.json").read_text())["strings"]:
        ids = tokenizer(case["text"], add_special_tokens=False)["input_ids"]
        assert ids == case["ids"], f"{case['text']!r}: {ids}, want {case['ids']}"
        assert tokenizer.decode(ids) == case["decoded"], repr(case["text"])
        assert tokenizer.decode(ids, skip_special_tokens=True) == case["decoded_skip_special"], repr(case["text"])
    for case in json.loads((args.goldens / "tokenizer/chat.json").read_text())["conversations"]:
        for key, generate in (("plain", False), ("gen", True)):
            text = tokenizer.apply_chat_template(case["messages"], tokenize=False, add_generation_prompt=generate)
            assert text == case[key]["text"], repr(text)
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == case[key]["ids"], repr(text)
    assert tokenizer.eos_token == "<|im_end|>", tokenizer.eos_token
    tokenizer.save_pretrained(args.theirs / "tokenizer")


@check("PEFT loads adapters of gofsdp, with the same logits")
def our_adapters():
    folders = sorted((args.ours / "adapters").iterdir())
    assert folders, "none there"
    for folder in folders:
        model = load_adapter(args.goldens / "tiny/plain", folder)
        logits = model(prompt(), use_cache=False).logits
        close(expected_logits(folder), logits, folder.name)
        with model.disable_adapter():
            differ(logits, model(prompt(), use_cache=False).logits, folder.name)
        golden = args.goldens / "peft" / folder.name / "golden.safetensors"
        if golden.exists():
            close(logits, load_file(golden)["logits_after10"][:, :PROMPT_LEN], f"{folder.name} and its golden")


@check("transformers and PEFT load what gofsdp sft wrote")
def our_results():
    tuned = args.ours / "tuned"
    base = load_model(tuned / "base")(prompt(), use_cache=False).logits
    whole = load_model(tuned / "full/model")(prompt(), use_cache=False).logits
    close(expected_logits(tuned / "full/model"), whole, "the whole model")
    differ(whole, base, "the whole model")
    AutoTokenizer.from_pretrained(tuned / "full/model")
    adapted = load_adapter(tuned / "base", tuned / "lora/adapter")(prompt(), use_cache=False).logits
    close(expected_logits(tuned / "lora/adapter"), adapted, "the adapter")
    differ(adapted, base, "the adapter")


@check("torch.distributed.checkpoint reads the shards of gofsdp")
def our_checkpoint():
    folder = args.ours / "checkpoint-1" / "model"
    assert len(list(folder.glob("*.safetensors"))) == 2, "want a file for each of two ranks"
    want = load_file(args.goldens / "tiny/plain/model.safetensors")
    reader = dcp.HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    assert set(stored) == set(want), set(stored) ^ set(want)
    state = {name: torch.full_like(tensor, float("nan")) for name, tensor in want.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    for name, tensor in want.items():
        assert torch.equal(state[name], tensor), name


@check("transformers writes models for gofsdp")
def their_models():
    for name in ("plain", "rope_llama3", "tied"):
        model, folder = tiny(name), args.theirs / "models" / name
        model.save_pretrained(folder, max_shard_size="150KB")
        if name == "plain":
            assert (folder / "model.safetensors.index.json").exists(), "want several files"
        save_logits(model, folder)


@check("PEFT writes adapters for gofsdp")
def their_adapters():
    configs = {
        "all_linear": LoraConfig(r=6, lora_alpha=9, target_modules="all-linear"),
        "regex": LoraConfig(r=3, lora_alpha=3, target_modules=r".*layers\.1\..*\.(q|down)_proj", init_lora_weights="gaussian"),
        "excluded": LoraConfig(r=4, target_modules=["q_proj", "up_proj"], exclude_modules=["layers.0.mlp.up_proj"]),
        "patterns": LoraConfig(
            r=8, lora_alpha=16, target_modules=["k_proj", "o_proj", "gate_proj"], use_rslora=True, layers_to_transform=[0],
            rank_pattern={"k_proj": 2}, alpha_pattern={"layers.0.mlp.gate_proj": 5},
        ),
    }
    torch.manual_seed(3)
    for name, config in configs.items():
        config.task_type = "CAUSAL_LM"
        model = get_peft_model(tiny("plain"), config)
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.2)
        folder = args.theirs / "adapters" / name
        model.save_pretrained(folder)
        save_logits(model.eval(), folder)


def main():
    torch.set_grad_enabled(False)
    failed = 0
    for name, function in checks:
        start = time.time()
        try:
            function()
        except Exception:
            failed += 1
            print(f"FAIL  {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok    {name} ({time.time() - start:.1f} s)", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
