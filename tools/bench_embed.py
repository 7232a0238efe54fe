#!/usr/bin/env python3
"""Compare oxiline's embedding speed with ONNX Runtime and sentence-transformers, in turns.

usage: bench_embed.py MODEL_FOLDER TEXTS --oxiline PROGRAM [--onnx FILE]... [--torch] [--rounds N] [--threads N]
                      [--batch N] [--quant q8] [--max N]

TEXTS has a text a line. PROGRAM is the example embed_speed of oxiline-language. Every round measures every
program once, each in a process of its own, loading not counted, tokenizing counted. ONNX files take
`input_ids` and `attention_mask` and give the last hidden states; texts go to them sorted by length in
batches of --batch, padded to the longest, which is how sentence-transformers feeds a model. Printed are the medians of
texts a second, their ranges, and ours divided by each. Exit status: 0 measured, 1 something failed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


def texts_of(path, most):
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return lines[:most] if most else lines


def run_onnx(model, texts, file, threads, batch):
    import numpy as np
    import onnxruntime as ort
    from tokenizers import Tokenizer

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    session = ort.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    most = json.loads((Path(model) / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer.enable_truncation(most)
    tokenizer.enable_padding()

    def all_of(texts):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = [None] * len(texts)
        for at in range(0, len(order), batch):
            some = order[at : at + batch]
            encoded = tokenizer.encode_batch([texts[i] for i in some])
            ids = np.array([e.ids for e in encoded], dtype=np.int64)
            mask = np.array([e.attention_mask for e in encoded], dtype=np.int64)
            hidden = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            weights = mask[..., None].astype(np.float32)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            for i, row in zip(some, pooled):
                out[i] = row
        return out

    all_of(texts[:64])
    began = time.perf_counter()
    all_of(texts)
    return time.perf_counter() - began


def run_torch(model, texts, threads, batch):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(model, device="cpu")
    loaded.encode(texts[:64], batch_size=batch)
    began = time.perf_counter()
    loaded.encode(texts, batch_size=batch)
    return time.perf_counter() - began


def measure(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_embed: {words[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("--oxiline")
    parser.add_argument("--onnx", action="append", default=[])
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--quant", action="store_true")
    parser.add_argument("--max", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    texts = texts_of(args.texts, args.max)
    if args.one:
        run = run_torch(args.model, texts, args.threads, args.batch) if args.one == "torch" else run_onnx(
            args.model, texts, args.one, args.threads, args.batch)
        print(len(texts) / run)
        return
    peers = list(args.onnx) + (["torch"] if args.torch else [])
    found = {name: [] for name in ["ours"] + (["ours q8"] if args.quant else []) + peers}
    for round_ in range(args.rounds):
        for name in found:
            if name.startswith("ours"):
                words = [args.oxiline, args.model, args.texts, str(args.threads), "2"]
                out = measure(words + (["q8"] if name.endswith("q8") else []))
                # The first round warms up.
                rate = float(out.splitlines()[-1].split(" s, ")[1].split(" ")[0])
            else:
                words = [sys.executable, __file__, args.model, args.texts, "--one", name, "--threads", str(args.threads),
                         "--batch", str(args.batch), "--max", str(args.max)]
                rate = float(measure(words))
            found[name].append(rate)
            print(f"round {round_}: {name}: {rate:.1f} texts/s, load {os.getloadavg()[0]:.1f}", flush=True)
    ours = found["ours"]
    for name, rates in found.items():
        ratios = [a / b for a, b in zip(ours, rates)]
        print(f"{name}: median {statistics.median(rates):.1f} texts/s ({min(rates):.1f} to {max(rates):.1f}), "
              f"ours / it {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
