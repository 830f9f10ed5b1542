"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-10-parallelism/changes_10.py {embedding,herd}
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout

from split import run_on_ranks

from mini_vllm.entrypoints.cli import main

LOAD = "--cost h100-llama-3-8b --request-rate 120 --input-len 400 --output-len 40 --num-prompts 600"


def embedding() -> None:
    """A greedy text on two ranks, and the sums and bytes of rank 0."""
    texts, ledgers = run_on_ranks(["The KV cache"], 16, tensor_parallel_size=2)
    ledger = ledgers[0]["tensor"]
    print(repr(texts[0]), ledger.count("all_reduce"), ledger.nbytes("all_reduce"))


def herd() -> None:
    """Four replicas: mean and 99th percentile of the TTFT in milliseconds, by router."""
    for router in ("round-robin", "least-loaded"):
        out = io.StringIO()
        command = f"simulate --replicas 4 --router {router} {LOAD} --json -"
        with redirect_stdout(out):
            main(command.split())
        found = json.loads(out.getvalue())
        print(router, round(found["mean_ttft_ms"], 1), round(found["p99_ttft_ms"], 1))


if __name__ == "__main__":
    {"embedding": embedding, "herd": herd}[sys.argv[1]]()
