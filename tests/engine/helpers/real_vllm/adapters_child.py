"""Real vLLM with LoRA adapters: prompts under each adapter and under none, all in one batch.

    python tests/engine/helpers/real_vllm/adapters_child.py JOB

JOB is JSON: the model's folder, the adapters' folders, prompts, and how many tokens each is to get. Printed
is, as one line of JSON, the tokens by the adapter's name, and under "base" those of the model alone.

vLLM's CPU build gives a row without an adapter the last slot's delta, since it takes slot -1 for an index.
So there is one slot more than there are adapters, and it stays empty.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def play(job: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Load the model and the adapters, and ask everything at once."""
    from vllm.utils import torch_utils

    # Memory pinned for a GPU is asked for by default, also where there is none.
    torch_utils.async_tensor_h2d.__defaults__ = (False,)

    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    folders = [Path(folder) for folder in job["adapters"]]
    llm = LLM(
        job["model"], dtype="float32", enforce_eager=True, block_size=16, max_model_len=512,
        max_num_seqs=64, seed=0, distributed_executor_backend=UniProcExecutor,
        enable_lora=True, max_loras=len(folders) + 1, max_lora_rank=16,
    )  # fmt: skip
    requests: list[Any] = [None]
    requests += [LoRARequest(folder.name, i, str(folder)) for i, folder in enumerate(folders, 1)]
    rows = [(prompt, request) for prompt in job["prompts"] for request in requests]
    outputs = llm.generate(
        [prompt for prompt, _ in rows],
        SamplingParams(temperature=0, max_tokens=job["max_tokens"]),
        lora_request=[request for _, request in rows],
        use_tqdm=False,
    )
    told: dict[str, list[list[int]]] = {}
    for (_, request), output in zip(rows, outputs, strict=True):
        name = request.lora_name if request else "base"
        told.setdefault(name, []).append(list(output.outputs[0].token_ids))
    return told


if __name__ == "__main__":
    print(json.dumps(play(json.loads(sys.argv[1]))))
