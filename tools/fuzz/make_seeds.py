#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets under tools/fuzz/corpus/, all made here.

Torch archives are the small ones under nodes/weights/tests/fixtures, made with a seed.
"""
import json
import shutil
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "nodes/weights/tests/fixtures/archives"


def put(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(tensors):
    header, data = {}, b""
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(i * 37 % 256 for i in range(size))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(kind, items):
    pack = {4: "<I", 5: "<i", 6: "<f"}.get(kind)
    body = b"".join(string(i) if kind == 8 else struct.pack(pack, i) for i in items)
    return struct.pack("<IIQ", 9, kind, len(items)) + body


def gguf(version, keys, tensors):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for key, value in keys:
        out += string(key) + value
    offset = 0
    for name, dims, kind, data in tensors:
        out += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // 32) * 32
    for _, _, _, data in tensors:
        out += bytes(-len(out) % 32) + data
    return out


def text(value):
    return struct.pack("<I", 8) + string(value)


put("safetensors", "plain", safetensors([("a", "F32", [2, 3], 24), ("b", "BF16", [4], 8)]))
put("safetensors", "q8", safetensors([("w.q8", "I8", [2, 64], 128), ("w.q8s", "F32", [2, 2], 16)]))
put("safetensors", "q4", safetensors([("w.q4", "U8", [2, 32], 64), ("w.q4s", "F16", [2, 2], 8)]))
tokens = [
    ("general.architecture", text("llama")),
    ("tokenizer.ggml.model", text("gpt2")),
    ("tokenizer.ggml.pre", text("qwen2")),
    ("tokenizer.ggml.tokens", array(8, ["a", "b", "ab", "<|end|>"])),
    ("tokenizer.ggml.merges", array(8, ["a b"])),
    ("tokenizer.ggml.token_type", array(5, [1, 1, 1, 3])),
]
pieces = [
    ("tokenizer.ggml.model", text("llama")),
    ("tokenizer.ggml.tokens", array(8, ["<unk>", "\u2581a", "<0x41>"])),
    ("tokenizer.ggml.scores", array(6, [0.0, -1.0, -2.0])),
    ("tokenizer.ggml.token_type", array(5, [2, 1, 6])),
]
blocks = [("q", [32, 2], 8, bytes(68)), ("k", [256, 1], 12, bytes(range(144))), ("f", [3], 0, bytes(12))]
for version in (2, 3):
    put("gguf", f"bpe-v{version}", gguf(version, tokens, blocks))
    put("gguf", f"pieces-v{version}", gguf(version, pieces, blocks[2:]))
for path in sorted((FIXTURES / "good").iterdir()):
    if path.suffix in (".bin", ".pt", ".ckpt"):
        (HERE / "corpus/torch").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, HERE / "corpus/torch" / path.name)
put("mlx", "named", json.dumps({"quantization": {"bits": 4, "group_size": 64, "b": {"bits": 3, "group_size": 64}}}).encode())
put("mlx", "other", json.dumps({"quantization_config": {"bits": 4, "group_size": 64, "mode": "affine", "b": False}}).encode())
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
put("tokenizer", "bpe", json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": bpe}).encode())
unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["\u2581a", -1.0]], "byte_fallback": True}
put("tokenizer", "unigram", json.dumps({"version": "1.0", "added_tokens": [], "model": unigram}).encode())
put("template", "loop", b"{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
put("template", "macro", b"{% macro f(x) %}{{ x | tojson }}{% endmacro %}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ f(m) }}{% endfor %}{{ raise_exception('no') if ns.n > 9 }}")
