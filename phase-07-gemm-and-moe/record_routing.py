"""Record which experts the shipped tiny Mixtral chooses on three kinds of text: `routing.json`.

    PYTHONPATH=. python phase-07-gemm-and-moe/record_routing.py            # write it anew
    PYTHONPATH=. python phase-07-gemm-and-moe/record_routing.py --check    # vLLM's routing beside it

Needs torch and transformers, and `--check` vLLM 0.22.1. A kind of text is a batch of 64 requests, each
with 128 tokens behind it. They decode 32 steps, so a step routes 64 tokens, twice each, in every layer.

* `chat`: documents of the training text that were held out, questions and answers about engines;
* `sums`: lines such as `418 + 77 = 495`, computed;
* `noise`: bytes drawn at random.

The tokens are given, not sampled: what is recorded is the routing and nothing of the output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.tiny_llama.corpus import Corpus, split_of
from scripts.tiny_llama.folder import BOS, FIRST_BYTE
from scripts.tiny_llama.train import encode

HERE = Path(__file__).parent
MODEL = HERE.parent / "mini_vllm" / "checkpoints" / "tiny-mixtral"
FILE = HERE / "routing.json"
COMMAND = "PYTHONPATH=. python phase-07-gemm-and-moe/record_routing.py"
ROWS, BEHIND, STEPS = 64, 128, 32
LAYERS, EXPERTS, TOP_K = 4, 8, 2


def chat() -> Iterator[int]:
    """Held-out documents, one after the other."""
    for document in Corpus(6).documents():
        if split_of(document) == "documents":
            yield from encode(document)


def sums() -> Iterator[int]:
    """Additions, one a line."""
    rng = random.Random(7)
    yield BOS
    while True:
        a, b = rng.randrange(1000), rng.randrange(1000)
        yield from (FIRST_BYTE + byte for byte in f"{a} + {b} = {a + b}\n".encode())


def noise() -> Iterator[int]:
    """Bytes, each as likely as the others."""
    rng = random.Random(8)
    yield BOS
    while True:
        yield FIRST_BYTE + rng.randrange(256)


KINDS = {"chat": chat, "sums": sums, "noise": noise}


def rows(kind: str) -> list[list[int]]:
    """The 64 requests of a kind, each its 160 tokens."""
    stream = KINDS[kind]()
    return [[next(stream) for _ in range(BEHIND + STEPS)] for _ in range(ROWS)]


def choices(tokens: list[list[int]], folder: Path) -> NDArray[Any]:
    """The experts of every token, `[layers, rows, tokens, 2]`, by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        output = model(torch.tensor(tokens), output_router_logits=True)
    chosen = [
        logits.view(len(tokens), -1, EXPERTS).topk(TOP_K, dim=-1).indices
        for logits in output.router_logits
    ]
    found: NDArray[Any] = torch.stack(chosen).numpy()
    return found


def count(chosen: NDArray[Any]) -> NDArray[Any]:
    """How often each expert is chosen, `[..., 8]`, of `chosen [..., tokens, 2]`."""
    return (chosen[..., None] == np.arange(EXPERTS)).sum(axis=(-3, -2))


def record(folder: Path) -> dict[str, Any]:
    """The content of `routing.json`."""
    import torch
    import transformers

    counts = {}
    for kind in KINDS:
        chosen = choices(rows(kind), folder)[:, :, BEHIND:]
        counts[kind] = count(chosen.transpose(0, 2, 1, 3)).tolist()  # [layers, steps, experts]
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    made = {"command": COMMAND, "versions": versions, "weights": weights}
    return {"made": made, "tokens_in_a_step": ROWS, "experts_per_token": TOP_K, "counts": counts}


def in_vllm(folder: Path) -> dict[str, NDArray[Any]]:
    """Counts over all tokens of each kind, `[layers, experts]`, as real vLLM routes them."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    calls: list[NDArray[Any]] = []
    select = cpu_fused_moe.select_experts

    def noted(*args: Any, **named: Any) -> Any:
        weights, chosen = select(*args, **named)
        calls.append(count(chosen.numpy()))
        return weights, chosen

    llm = LLM(
        str(folder), dtype="float32", enforce_eager=True, max_model_len=512,
        enable_prefix_caching=False, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    cpu_fused_moe.select_experts = noted
    counts = {}
    for kind in KINDS:
        calls.clear()
        prompts = [{"prompt_token_ids": row} for row in rows(kind)]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        # A step asks layer after layer, so every fourth call is the same layer's.
        counts[kind] = np.stack([np.sum(calls[i::LAYERS], axis=0) for i in range(LAYERS)])
    return counts


def check(folder: Path) -> None:
    """Print how far vLLM's counts are from those of transformers, over all tokens."""
    theirs = in_vllm(folder)
    for kind, counts in theirs.items():
        ours = count(choices(rows(kind), folder)).sum(axis=1)
        moved = int(np.abs(counts - ours).sum()) // 2
        print(f"{kind}: {int(counts.sum()):,} choices, {moved} on another expert in vLLM")


def table(recorded: dict[str, Any]) -> str:
    """The share of a layer's choices that each expert has, in percent."""
    lines = ["kind   layer   expert 0    1    2    3    4    5    6    7"]
    for kind, layers in recorded["counts"].items():
        for i, steps in enumerate(layers):
            total = np.sum(steps, axis=0)
            shares = "".join(f"{100 * x / total.sum():5.0f}" for x in total)
            lines.append(f"{kind:<7}{i:>5}   {'':5}{shares}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with vLLM and write nothing")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    if args.check:
        check(args.model)
        return
    recorded = record(args.model)
    args.out.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")
    print(table(recorded))


if __name__ == "__main__":
    main()
