#!/usr/bin/env python3
"""Compare oxiline with llama-cpp-python on one GGUF file: same tokens, greedy, in turns.

usage: bench_llm.py MODEL.gguf [--oxiline PROGRAM] [--prompt N] [--generate N] [--repeat N] [--threads N]
                    [--max-load X] [--json]

Run it with the Python that has llama-cpp-python installed. Every round measures both programs one
after the other, each in a process of its own, so that the state of the machine is the same for
both; the medians and their ratio (oxiline / llama.cpp) are printed with the smallest and largest
value and the load of the machine. Both are given the same token ids. --max-load waits for a
one-minute load below X before each round. Exit status: 0 measured, 1 something failed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

MASK = (1 << 64) - 1


def token_ids(count, vocab):
    """The ids of `oxiline bench`."""
    seed, ids = 0x2545F4914F6CDD1D, []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) & MASK
        ids.append((seed >> 33) % vocab)
    return ids


def peer(model, prompt, generate, threads):
    """Rates of llama.cpp; runs in a process of its own."""
    import llama_cpp

    llama = llama_cpp.Llama(model_path=model, n_ctx=prompt + generate + 8, n_batch=max(prompt, 32), n_ubatch=512,
                            n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False)
    ids = token_ids(prompt, llama.n_vocab())
    llama.eval(ids[:16])
    llama.reset()
    began = time.perf_counter()
    llama.eval(ids)
    # The logits are there only when they are read.
    token = llama.sample(temp=0.0, repeat_penalty=1.0)
    pp = prompt / (time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(generate):
        llama.eval([token])
        token = llama.sample(temp=0.0, repeat_penalty=1.0)
    tg = generate / (time.perf_counter() - began)
    print(json.dumps({"pp": pp, "tg": tg}))


def measured(command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"bench_llm: {command[0]} failed: {(run.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def quiet(most):
    while most is not None and os.getloadavg()[0] > most:
        time.sleep(5)


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main():
    parser = argparse.ArgumentParser(prog="bench_llm", usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("model")
    default = Path(__file__).resolve().parent.parent / "target" / "release" / "oxiline"
    parser.add_argument("--oxiline", default=str(default))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--max-load", type=float)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        return peer(given.model, given.prompt, given.generate, given.threads)
    sizes = ["--prompt", str(given.prompt), "--generate", str(given.generate), "--threads", str(given.threads)]
    ours = [given.oxiline, "bench", given.model, *sizes, "--repeat", "1", "--json"]
    theirs = [sys.executable, str(Path(__file__).resolve()), given.model, *sizes, "--peer"]
    rows = {"oxiline": {"pp": [], "tg": []}, "llama.cpp": {"pp": [], "tg": []}}
    loads = []
    for _ in range(given.repeat):
        quiet(given.max_load)
        loads.append(os.getloadavg()[0])
        one = measured(ours)
        for what in ("pp", "tg"):
            rows["oxiline"][what].append(one[what]["median"])
        one = measured(theirs)
        for what in ("pp", "tg"):
            rows["llama.cpp"][what].append(one[what])
    result = {name: {what: summary(values) for what, values in row.items()} for name, row in rows.items()}
    ratio = {what: result["oxiline"][what]["median"] / result["llama.cpp"][what]["median"] for what in ("pp", "tg")}
    if given.json:
        print(json.dumps({**result, "ratio": ratio, "load": loads, "threads": given.threads,
                          "prompt": given.prompt, "generate": given.generate, "model": Path(given.model).name}))
        return 0
    print(f"{Path(given.model).name}, {given.threads} threads, load {min(loads):.1f} to {max(loads):.1f}; "
          "tokens/s: median [min - max]")
    for what, count in (("pp", given.prompt), ("tg", given.generate)):
        cells = [f"{name} {row[what]['median']:.1f} [{row[what]['min']:.1f} - {row[what]['max']:.1f}]"
                 for name, row in result.items()]
        print(f"{what}{count:<5} {cells[0]:<40} {cells[1]:<42} ratio {ratio[what]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
