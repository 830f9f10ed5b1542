"""Real vLLM on quantised checkpoints, all in one process: tokens, and logprobs of the prompts.

    python quantized_vllm_child.py CASES.json    [{"folder": ..., "dtype": ...}, ...] and prompts

Prints one line of JSON: a list with an object a case, or `error`, what vLLM refused it with.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def inputs(size: int) -> np.ndarray:
    """Float32 rows for a linear of so many inputs, among them a row of zeros and one with an outlier."""
    x = np.random.default_rng(size).standard_normal((24, size)).astype(np.float32)
    x[0], x[1, 3] = 0, 40
    return x


def run(folder: str, dtype: str, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    import torch
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        folder, dtype=dtype, enforce_eager=True, block_size=16, max_model_len=256, max_num_seqs=8, seed=0,
        max_logprobs=-1, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, prompt_logprobs=-1
    )
    ids: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(ids, params, use_tqdm=False)
    worker = llm.llm_engine.model_executor.driver_worker.worker  # type: ignore[attr-defined]
    layer = worker.model_runner.model.model.layers[0]
    linears = [
        layer.self_attn.qkv_proj,
        layer.self_attn.o_proj,
        layer.mlp.gate_up_proj,
        layer.mlp.down_proj,
    ]
    method = linears[0].quant_method
    holder = getattr(linears[0], "scheme", None) or method
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        # Of each prompt, row i about the token after token i.
        "logprobs": [
            [[row[t].logprob for t in range(len(row))] for row in output.prompt_logprobs[1:]]
            for output in outputs
        ],
        # What each linear makes of the same rows, which no layer before it has rounded.
        "outputs": [
            linear(torch.tensor(inputs(linear.input_size), dtype=getattr(torch, dtype)))[0].tolist()
            for linear in linears
        ],
        "method": type(method).__name__,
        "kernel": type(getattr(holder, "kernel", None)).__name__,
    }  # fmt: skip


def main() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = []
    for case in asked["cases"]:
        try:
            result = run(case["folder"], case["dtype"], asked["prompts"], asked["max_tokens"])
        except Exception as error:  # the others are to run nevertheless
            result = {"error": f"{type(error).__name__}: {error}"}
        results.append(result)
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
