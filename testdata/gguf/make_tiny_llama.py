"""Writes tiny_llama.gguf, a two-layer Llama with random weights as llama.cpp's converter lays it out (rows of the query
and key projections interleaved, Llama 3's rotary scaling as factors, a byte-level tokenizer), and tiny_llama.safetensors,
the same weights under Hugging Face names.
Needs: pip install gguf==0.19.0 numpy.  Run: python make_tiny_llama.py"""
import json, math, os, struct
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(11)
HIDDEN, LAYERS, HEADS, KV, HEAD_DIM, MLP, VOCAB, THETA, FACTOR = 32, 2, 4, 2, 8, 64, 280, 500000.0, 8.0
expected = {}


def interleave(a, heads):
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def add(name, hf, shape, heads=0, qtype=T.F32):
    a = (rng.standard_normal(shape) * 0.1).astype(np.float32)
    stored = np.ascontiguousarray(interleave(a, heads) if heads else a)
    raw = gguf.quantize(stored, qtype)
    seen = gguf.dequantize(raw, qtype).reshape(shape)
    if heads:  # back to the Hugging Face order
        seen = seen.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    if qtype == T.F32:
        assert (seen == a).all()
    expected[hf] = np.ascontiguousarray(seen, dtype=np.float32)
    w.add_tensor(name, raw, raw_dtype=qtype)


w = gguf.GGUFWriter(os.path.join(here, "tiny_llama.gguf"), "llama")
w.add_block_count(LAYERS); w.add_context_length(131072); w.add_embedding_length(HIDDEN); w.add_feed_forward_length(MLP)
w.add_head_count(HEADS); w.add_head_count_kv(KV); w.add_rope_freq_base(THETA); w.add_layer_norm_rms_eps(1e-5)
w.add_rope_dimension_count(HEAD_DIM); w.add_vocab_size(VOCAB)

# The 256 bytes as the letters that byte-level BPE gives them, then merges and special tokens.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {b: chr(b) for b in plain}
for b in range(256):
    letters.setdefault(b, chr(256 + sum(1 for x in letters.values() if ord(x) > 255)))
tokens = [letters[b] for b in range(256)]
merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "l d", "Ġw or", "Ġwor ld"]
tokens += [m.replace(" ", "") for m in merges]
tokens += [f"<|reserved_{i}|>" for i in range(VOCAB - len(tokens) - 2)] + ["<|begin|>", "<|end|>"]
w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("llama-bpe"); w.add_token_list(tokens)
w.add_token_types([3 if t.startswith("<|") else 1 for t in tokens]); w.add_token_merges(merges)
w.add_bos_token_id(VOCAB - 2); w.add_eos_token_id(VOCAB - 1)
w.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

factors = []
for i in range(HEAD_DIM // 2):
    turns = 8192 / (2 * math.pi * THETA ** (2 * i / HEAD_DIM))
    smooth = (turns - 1) / 3
    factors.append(1.0 if turns > 4 else FACTOR if turns < 1 else 1 / ((1 - smooth) / FACTOR + smooth))
w.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
add("output.weight", "lm_head.weight", (VOCAB, HIDDEN), qtype=T.Q8_0)
add("token_embd.weight", "model.embed_tokens.weight", (VOCAB, HIDDEN), qtype=T.BF16)
for i in reversed(range(LAYERS)):
    g, h = f"blk.{i}.", f"model.layers.{i}."
    add(g + "attn_norm.weight", h + "input_layernorm.weight", (HIDDEN,))
    add(g + "ffn_norm.weight", h + "post_attention_layernorm.weight", (HIDDEN,))
    for name, hf, heads, rows, cols in (("attn_q", "q_proj", HEADS, HEADS * HEAD_DIM, HIDDEN), ("attn_k", "k_proj", KV, KV * HEAD_DIM, HIDDEN),
                                        ("attn_v", "v_proj", 0, KV * HEAD_DIM, HIDDEN), ("attn_output", "o_proj", 0, HIDDEN, HEADS * HEAD_DIM)):
        add(g + name + ".weight", f"{h}self_attn.{hf}.weight", (rows, cols), heads, T.Q4_0 if i else T.F32)
        add(g + name + ".bias", f"{h}self_attn.{hf}.bias", (rows,), heads)
    for name, hf, rows, cols in (("ffn_gate", "gate_proj", MLP, HIDDEN), ("ffn_up", "up_proj", MLP, HIDDEN), ("ffn_down", "down_proj", HIDDEN, MLP)):
        add(g + name + ".weight", f"{h}mlp.{hf}.weight", (rows, cols), qtype=T.F16)
add("output_norm.weight", "model.norm.weight", (HIDDEN,))
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

header, data = {}, b""
for name in sorted(expected):
    a = expected[name]
    header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
    data += a.tobytes()
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(here, "tiny_llama.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)
