"""Tokens of a small random model under Triton's kernels and graphs, as JSON; run by `test_gpu_cudagraph.py`.

A process of its own, because TRITON_INTERPRET is read when triton is imported.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from engine_helpers import random_model, run
from torch_helpers import torch_model

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine import EngineParts

PROMPTS = [[3, 4, 5, 6, 7], [9], [11, 12, 13, 14, 15, 16, 17, 18, 19]]
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "block_size": 4, "num_gpu_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 8,
}  # fmt: skip


def main(device: str) -> None:
    """Print what each mode says, and how often it ran as what."""
    from mini_vllm.gpu.backend import TritonAttention
    from mini_vllm.gpu.graph_standin import watch

    results: dict[str, Any] = {}
    engine = LLMEngine(random_model(), EngineConfig(**SETTINGS))
    results["numpy"] = {"tokens": run(engine, PROMPTS, PARAMS)}
    for mode in ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE"):
        parts = EngineParts(attention=TritonAttention)
        model = random_model(parts=parts, model_cls=torch_model(device))
        graphs: dict[str, Any] = {"cudagraph_mode": mode, "cudagraph_capture_sizes": [1, 2, 4, 8]}
        engine = LLMEngine(model, EngineConfig(attention="triton", **graphs, **SETTINGS))
        ran: Counter[str] = Counter()

        def note(step: Any, ran: Counter[str] = ran) -> None:
            if stat := step.model_runner_output.cudagraph_stats:
                ran[stat.runtime_mode] += 1

        engine.engine_core.step_observers.append(note)
        with watch():
            results[mode] = {"tokens": run(engine, PROMPTS, PARAMS), "ran": ran}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
