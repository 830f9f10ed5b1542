"""Tokens of a small model under Triton's kernels and graphs, as JSON; run by `test_gpu_cudagraph.py`.

    gpu_cudagraph_child.py cpu|cuda [FOLDER]      a checkpoint's model; without FOLDER a random one

A process of its own, because TRITON_INTERPRET is read when triton is imported.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import PagedAttention
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM
from tests.engine.helpers.engine.engine_helpers import random_model, run
from tests.engine.helpers.gpu.torch_helpers import torch_model

PROMPTS = [[3, 4, 5, 6, 7], [9], [11, 12, 13, 14, 15, 16, 17, 18, 19]]
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "block_size": 4, "num_gpu_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 8,
}  # fmt: skip


def make_model(folder: str | None, attention: Any, model_cls: Any) -> Any:
    """The checkpoint's model, or a random one."""
    if folder is None:
        return random_model(parts=EngineParts(attention=attention), model_cls=model_cls)
    return load_model(folder, attention(), model_cls)


def main(device: str, folder: str | None = None) -> None:
    """Print what each mode says, and how often it ran as what."""
    from mini_vllm.gpu.backend import TritonAttention
    from mini_vllm.gpu.graph_standin import watch

    results: dict[str, Any] = {}
    model = make_model(folder, PagedAttention, LlamaForCausalLM)
    engine = LLMEngine(model, EngineConfig(**SETTINGS))
    results["numpy"] = {"tokens": run(engine, PROMPTS, PARAMS)}
    for mode in ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE"):
        model = make_model(folder, TritonAttention, torch_model(device))
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
    main(*sys.argv[1:])
