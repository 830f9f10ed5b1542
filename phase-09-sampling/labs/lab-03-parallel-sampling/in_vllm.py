"""Given: your law beside real vLLM on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   your answers beside vLLM's, a line per server
    python in_vllm.py --record               write recorded.json, which the tests read

Every row has a seed, and no prompt comes in chunks: with one row unseeded vLLM's CPU path ignores all seeds,
and a seeded prompt in chunks ends its engine.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from itertools import groupby
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
support = load_module(HERE / "support.py", "lab_09_03_support")
LENGTHS = (9, 16, 17, 40, 120)


def cases() -> list[dict[str, Any]]:
    """The fields of every case, those with the same server one behind the other."""
    found: list[dict[str, Any]] = [
        {"num_prompt_tokens": length, "n": n} for length in LENGTHS for n in (1, 2, 3, 4)
    ]
    for name in ("served_before", "prompt_logprobs"):
        found += [{"num_prompt_tokens": length, "n": 3, name: True} for length in LENGTHS]
    for changed in ({"max_num_seqs": 1}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 128}):
        found += [{"num_prompt_tokens": length, "n": 4, **changed} for length in (16, 120)]
    return found


def server(fields: dict[str, Any]) -> tuple[int, int]:
    """`max_num_seqs` and `max_num_batched_tokens`."""
    return fields.get("max_num_seqs", 8), fields.get("max_num_batched_tokens", 512)


def play_all(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What real vLLM answers to each case; an engine per server, whose cache is emptied between two."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    found = []
    for (max_num_seqs, budget), group in groupby(asked, server):
        engine = vllm.LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            distributed_executor_backend=UniProcExecutor,
            block_size=16,
            max_model_len=256,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            num_gpu_blocks_override=128,
        ).llm_engine
        scheduler = engine.engine_core.engine_core.scheduler
        add, schedule = scheduler.add_request, scheduler.schedule
        for fields in group:
            scheduler.add_request, scheduler.schedule = add, schedule
            engine.reset_prefix_cache()
            played = support.play_on(
                engine, scheduler, vllm.SamplingParams, support.Asked(**fields)
            )
            found.append({"case": fields, **asdict(played)})
    return found


def main(which: str = "starter") -> None:
    need_vllm()
    played = play_all(cases())
    if which == "--record":
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in played)
        support.RECORDED.write_text(f'{{"vllm":"0.22.1","played":[\n{lines}\n]}}\n', "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", "lab_09_03_lab")
    for (max_num_seqs, budget), group in groupby(played, lambda one: server(one["case"])):
        answers = list(group)
        asked = [lab.Case(**one["case"]) for one in answers]
        wrong = sum(
            (lab.cached_tokens(case), lab.first_step(case)) != (one["cached"], one["first_step"])
            for case, one in zip(asked, answers, strict=True)
        )
        print(f"{max_num_seqs} slots, budget {budget}: {len(asked):2} cases, {wrong} differ")


if __name__ == "__main__":
    main(*sys.argv[1:2])
