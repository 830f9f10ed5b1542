"""Given: real vLLM on a CPU under your experiments. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   the shipped model, in each of your situations
    python in_vllm.py --record               write recorded.json, which the tests read

Situations whose prompt comes in chunks are left out: to take back a draw, vLLM 0.22.1 asks the generator for
its offset, which a CPU's does not have, and the engine dies. Each situation gets an engine of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_02_support")
RECORDED: list[tuple[int | str | None, ...]] = [(), (3,), (7,), (None,), ("greedy",)]


def play(situation: Any) -> list[int]:
    """What real vLLM answers the request with seed 7."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    engine = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        async_scheduling=False,
        distributed_executor_backend=UniProcExecutor,
        block_size=16,
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=situation.token_budget,
        num_gpu_blocks_override=situation.num_blocks,
    ).llm_engine
    for req_id, prompt, knobs in support.requests_of(situation):
        engine.add_request(req_id, {"prompt_token_ids": prompt}, vllm.SamplingParams(**knobs))
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == support.MINE:
                tokens = list(output.outputs[0].token_ids)
    return tokens


def direct() -> list[list[int]]:
    """vLLM's two samplers on two rows, the second with seed 7: alone, and beside a row without a seed.

    `forward_cpu` and then `forward_native`, each: the token alone, and the token in company.
    """
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    torch.compiler.set_stance("force_eager")
    torch.manual_seed(0)
    sampler = TopKTopPSampler()
    found = []
    for forward in (sampler.forward_cpu, sampler.forward_native):
        tokens = []
        for rows in (1, 2):
            seeded = {rows - 1: torch.Generator().manual_seed(7)}
            drawn, _ = forward(torch.zeros(rows, 1000), seeded, None, None)
            tokens.append(int(drawn[-1]))
        found.append(tokens)
    return found


def main(which: str = "starter") -> None:
    need_vllm()
    lab = load_module(HERE / f"{'solution' if which == '--record' else which}.py", "lab_09_02_lab")
    if which == "--record":
        tokens = {repr(one): play(lab.Situation(neighbours=one)) for one in RECORDED}
        text = json.dumps({"vllm": "0.22.1", "tokens": tokens}, separators=(",", ":"))
        support.RECORDED.write_text(text + "\n", encoding="utf-8")
        return
    situations = [
        one
        for one in lab.experiments()
        if one.token_budget >= support.NUM_PROMPT_TOKENS * (1 + len(one.neighbours))
    ]
    changed = lab.changed_by(play, situations)
    for one in situations:
        print(f"{'changed' if one in changed else '-':9}{one}")
    names = ("forward_cpu", "forward_native")
    for name, (alone, beside) in zip(names, direct(), strict=True):
        print(f"{name}: token {alone} alone, {beside} beside a row without a seed")


if __name__ == "__main__":
    main(*sys.argv[1:2])
