#!/usr/bin/env python3
"""Measures live captions: `bench_live.py PROGRAM MODEL CLIP... [--policy P]... [--unaware] [--set KEY=VALUE]...`

Runs graphs/captions-file-paced.toml on every clip with every policy and prints, pooled over the clips, the
figures that `asr.stream` reports (seconds: mean, 95th percentile), and the word error rate against the text
that the program gives offline (`transcribe`). `--unaware` runs on the virtual clock, where computing takes no
time: what the graph and the policy cost alone, the same on every machine.
"""

import argparse
import json
import pathlib
import re
import resource
import subprocess
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = ("time_to_first_partial_s", "commit_latency_s", "time_to_final_s", "lag_s")


def words(text):
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def errors(reference, hypothesis):
    """Levenshtein distance in words."""
    row = list(range(len(hypothesis) + 1))
    for i, a in enumerate(reference, 1):
        left, row[0] = row[0], i
        for j, b in enumerate(hypothesis, 1):
            left, row[j] = row[j], min(left + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done


def end_of(stderr):
    """The event that ends a run, and the report of its `asr.stream`."""
    end = json.loads([line for line in stderr.splitlines() if line.startswith('{"event":"end"')][-1])
    return end, next(node["reports"] for node in end["nodes"] if node["kind"] == "asr.stream")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("clips", nargs="+", type=pathlib.Path)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--unaware", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    program = args.program.resolve()
    clips = [clip.resolve() for clip in args.clips]
    wanted = [words(run([program, "transcribe", clip, "--model", args.model, "-q"]).stdout) for clip in clips]
    print("policy | first partial | commit | final | lag | churn | retractions | wer vs offline | cores")
    for policy in args.policy or ["local-agreement", "align-att", "stable-prefix", "final-only"]:
        reports, wrong, total, busy, wall = [], 0, 0, 0.0, 0.0
        for clip, reference in zip(clips, wanted):
            with tempfile.TemporaryDirectory() as folder:
                notes = pathlib.Path(folder, "notes.txt")
                sets = [f"input={clip}", f"model={args.model}", f"policy={policy}", f"output={notes}"]
                sets += ["nodes.notes.format=text", *args.set, *(["graph.clock=virtual"] if args.unaware else [])]
                command = [program, "run", "graphs/captions-file-paced.toml", "--stats", "json"]
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = run(command + [word for one in sets for word in ("--set", one)])
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                text = notes.read_text()
            end, report = end_of(done.stderr)
            reports.append(report)
            wrong += errors(reference, words(text))
            total += len(reference)
            wall += end["wall_s"]
            busy += after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        mean = lambda name, key: statistics.mean(r[name][key] for r in reports if r.get(name))
        cells = [f"{mean(name, 'mean'):.2f}, {mean(name, 'p95'):.2f}" for name in SECONDS]
        churn = statistics.mean(r.get("churn", 0) for r in reports)
        cells += [f"{churn:.2f}", str(sum(r.get("retractions", 0) for r in reports)), f"{wrong / max(total, 1):.1%}"]
        print(" | ".join([policy, *cells, "-" if args.unaware else f"{busy / wall:.2f}"]), flush=True)


if __name__ == "__main__":
    main()
