"""Real vLLM with adapters, in a process of its own: `python -m tests.engine.lora.vllm_child JOB ANSWER`.

JOB has `runs`, each with a `model`, `settings` of the engine and `calls` of `generate`: `prompts` as token
ids, `adapters`, of each None or name, id and folder, and `max_tokens`. ANSWER has, by run and call, each
prompt's tokens and how many of them were cached.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams
    from vllm.lora.layers import base_linear
    from vllm.lora.request import LoRARequest
    from vllm.utils import torch_utils
    from vllm.v1.executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    # A wrapper asks a weight where it is, and the CPU's kernel for int8 has dropped it: PR 57480 mends that.
    base_linear._get_lora_device = lambda _: torch.device("cpu")
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers: list[Any] = []
    for run in job["runs"]:
        llm = LLM(
            model=run["model"],
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            distributed_executor_backend=UniProcExecutor,
            enable_lora=True,
            **run["settings"],
        )
        answers.append([])
        for call in run["calls"]:
            outputs = llm.generate(
                [{"prompt_token_ids": ids} for ids in call["prompts"]],
                [
                    SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
                    for n in call["max_tokens"]
                ],
                lora_request=[a and LoRARequest(*a) for a in call["adapters"]],
                use_tqdm=False,
            )
            answers[-1].append(
                [[list(o.outputs[0].token_ids), o.num_cached_tokens] for o in outputs]
            )
        del llm
        gc.collect()
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
