"""Given: your layer beside real vLLM on a CPU. Needs vLLM 0.22.1; `course grade` does not.

python in_vllm.py [solution | starter]   your numbers and tokens beside vLLM's
python in_vllm.py --record               write recorded.json, which the tests read
"""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_01_support")


def no_pinning() -> None:
    """The mapping of rows is copied from pinned memory, which takes a GPU; from here on it is not
    (`vllm/utils/torch_utils.py:608 async_tensor_h2d`)."""
    from vllm.utils import torch_utils

    torch_utils.async_tensor_h2d.__defaults__ = (False,)


def step_in_vllm(step: Any) -> list[list[float]]:
    """The layer's result by vLLM's CPU build: the base's product, then its operations on what its slots hold.

    (`vllm/lora/layers/base_linear.py:206 BaseLinearLayerWithLoRA._apply_lora_to_output`.)
    """
    import torch
    from vllm.lora.layers import LoRAMapping
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    no_pinning()
    num_slots, size_in = len(step.adapters), step.x.shape[1]
    rank = max(len(a) for pairs in step.adapters for a, _ in pairs.values())
    stacked_a, stacked_b = [], []
    for name, size in step.sizes.items():
        stacked_a.append(torch.zeros(num_slots, 1, rank, size_in))
        stacked_b.append(torch.zeros(num_slots, 1, size, rank))
        for slot, pairs in enumerate(step.adapters):
            if name in pairs:
                a, b = (torch.from_numpy(matrix) for matrix in pairs[name])
                stacked_a[-1][slot, 0, : len(a)] = a
                stacked_b[-1][slot, 0, :, : len(a)] = b
    ids = [slot + 1 if pairs else None for slot, pairs in enumerate(step.adapters)]
    of_rows = tuple(slot + 1 for slot in step.slot_of_row)
    wrapper = PunicaWrapperCPU(64, 64, "cpu")
    wrapper.update_metadata(LoRAMapping(of_rows, of_rows, is_prefill=True), ids, num_slots + 1, 264)
    x = torch.from_numpy(step.x)
    y = x @ torch.from_numpy(step.weight).T
    sizes = tuple(step.sizes.values())
    wrapper.add_lora_linear(y, x, tuple(stacked_a), tuple(stacked_b), 1.0, sizes)
    found: list[list[float]] = y.tolist()
    return found


def play_all() -> dict[str, list[list[int]]]:
    """Each run's tokens by real vLLM, an engine per number of slots."""
    import vllm
    from vllm.lora.request import LoRARequest
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    no_pinning()
    found = {}
    for max_loras, group in groupby(support.RUNS.items(), lambda item: item[1].max_loras):
        llm = vllm.LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            distributed_executor_backend=UniProcExecutor,
            enable_lora=True,
            max_loras=max_loras,
            **support.SETTINGS,
        )
        for name, run in group:
            found[name] = support.serve(llm, vllm.SamplingParams, LoRARequest, run)
        del llm
    return found


def record() -> None:
    """Write what vLLM says."""
    steps = {name: step_in_vllm(step) for name, step in support.STEPS.items()}
    lines = [
        f'"{name}":{json.dumps([[round(v, 6) for v in row] for row in rows], separators=(",", ":"))}'
        for name, rows in steps.items()
    ]
    runs = [
        f'"{name}":{json.dumps(tokens, separators=(",", ":"))}'
        for name, tokens in play_all().items()
    ]
    text = ",\n".join(lines), ",\n".join(runs)
    support.RECORDED.write_text(
        f'{{"vllm":"0.22.1","steps":{{\n{text[0]}\n}},"runs":{{\n{text[1]}\n}}}}\n', "utf-8"
    )


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        record()
        return
    lab = load_module(HERE / f"{which}.py", "lab_11_01_lab")
    for name, step in support.STEPS.items():
        theirs = np.array(step_in_vllm(step))
        slots = [lab.place(step.sizes, pairs) for pairs in step.adapters]
        mine = lab.step_layer(step.x, step.weight, list(step.slot_of_row), slots)
        apart = np.abs(mine - theirs).max(axis=1) > support.NEAR * np.abs(theirs).max()
        print(f"{name:30} rows that differ: {np.flatnonzero(apart).tolist()}")
    for name, theirs in play_all().items():
        run = support.RUNS[name]
        for how, as_cpu_build in (("grouped", False), ("with borrowed", True)):
            mine = support.play(lab, run, as_cpu_build)
            others = zip(run.requests, mine, theirs, strict=True)
            differ = [who for (who, _, _), ours, one in others if ours != one]
            print(f"{name:30} {how:14} tokens {f'differ: {differ}' if differ else 'equal'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
