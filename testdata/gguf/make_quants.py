"""Writes quants.gguf (random blocks of every tensor type that gofsdp dequantises, and every metadata type) and
quants.safetensors (the same tensors as the reference dequantiser of the package gguf sees them).
Needs: pip install gguf==0.19.0 numpy.  Run: python make_quants.py"""
import json, os, struct
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T, GGUFValueType as V

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(7)

def halves(n):
    """Finite halves of every magnitude, subnormals and both zeros among them."""
    h = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    h[(h & 0x7C00) == 0x7C00] ^= 0x4000
    h[0::7] &= 0x83FF
    return h

# byte offsets of the half-precision scales within a block
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}

w = gguf.GGUFWriter(os.path.join(here, "quants.gguf"), "llama")
for t, value in ((V.UINT8, 255), (V.INT8, -128), (V.UINT16, 65535), (V.INT16, -32768), (V.UINT32, 4294967295),
                 (V.INT32, -2147483648), (V.FLOAT32, 0.1), (V.BOOL, True), (V.STRING, "grün"), (V.UINT64, 2**64 - 1),
                 (V.INT64, -2**63), (V.FLOAT64, 0.1)):
    w.add_key_value("scalar." + t.name.lower(), value, t)
for t, value in ((V.UINT8, [0, 255]), (V.INT8, [-128, 127]), (V.UINT16, [1, 2, 65535]), (V.INT16, [-1]), (V.UINT32, [7]),
                 (V.INT32, [-1, 3]), (V.FLOAT32, [0.5, -2.0]), (V.BOOL, [True, False]), (V.STRING, ["a", "", "bc"]),
                 (V.UINT64, [2**63]), (V.INT64, [-5]), (V.FLOAT64, [0.1])):
    w.add_key_value("array." + t.name.lower(), value, V.ARRAY, sub_type=t)

expected = {}
for t in (T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K):
    block, size = gguf.GGML_QUANT_SIZES[t]
    rows, per_row = (5, 2) if block == 256 else (7, 6)
    raw = rng.integers(0, 256, (rows * per_row, size), dtype=np.uint8)
    if t == T.F32:
        raw = rng.standard_normal((rows * per_row, 1)).astype(np.float32).view(np.uint8)
    elif t in (T.F16, T.BF16):
        raw = halves(rows * per_row).reshape(-1, 1).view(np.uint8)
    for off in SCALES.get(t, []):
        raw[:, off:off + 2] = halves(len(raw)).reshape(-1, 1).view(np.uint8)
    raw = raw.reshape(rows, per_row * size)
    with np.errstate(over="ignore", invalid="ignore"):
        expected[t.name] = np.ascontiguousarray(gguf.dequantize(raw, t), dtype=np.float32)
    assert np.isfinite(expected[t.name]).all() or t == T.BF16

    w.add_tensor(t.name, raw, raw_dtype=t)
    print(t.name, expected[t.name].shape)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

header, data = {}, b""
for name, a in expected.items():
    header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
    data += a.tobytes()
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(here, "quants.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)
