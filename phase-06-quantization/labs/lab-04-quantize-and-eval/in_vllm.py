"""Real vLLM on the quantised checkpoints: log probabilities, tokens, and seconds. measure.py runs it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"w8a8": "float32", "smoothquant-w8a8": "float32"}
"""For the methods whose kernel on a CPU takes float32; all others get bfloat16."""
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_INT4_W4A8": "0",  # with AMX AWQ's activations would be rounded to 8 bits, too
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}


def dtype_of(method: str) -> str:
    """float32 where there is a kernel for it, because then hardly anything but the method rounds."""
    return DTYPES.get(method.split("-g")[0], "bfloat16")


def load(folder: Path, dtype: str) -> Any:
    """An engine on the checkpoint, its worker in this process. Raises what vLLM raises."""
    os.environ |= SETTINGS
    import vllm
    from vllm.model_executor.layers import rotary_embedding
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    rotary_embedding._ROPE_DICT.clear()  # else this engine gets the layer of the one before
    return vllm.LLM(
        str(folder), dtype=dtype, enforce_eager=True, block_size=32, max_model_len=512, seed=0,
        max_num_seqs=16, max_num_batched_tokens=512, max_logprobs=-1, enable_prefix_caching=False,
        distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip


def logprobs(llm: Any, documents: Sequence[Sequence[int]]) -> list[np.ndarray[Any, Any]]:
    """Log probabilities of the whole vocabulary, float32 `[n - 1, vocab_size]` a document.

    Row `i` is about the token after the first `i + 1`: vLLM reports none for the first token.
    """
    import vllm

    wanted = vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1)
    found = []
    for out in llm.generate(
        [{"prompt_token_ids": list(d)} for d in documents], wanted, use_tqdm=False
    ):
        rows = [
            [at[token].logprob for token in range(len(at))]
            for at in out.prompt_logprobs
            if at is not None
        ]
        found.append(np.array(rows, np.float32))
    return found


def tokens(llm: Any, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy tokens behind each prompt."""
    import vllm

    wanted = vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], wanted, use_tqdm=False)
    return [list(out.outputs[0].token_ids) for out in outputs]


def rounds(
    engines: Mapping[str, Any], batch: int, count: int, times: int
) -> dict[str, list[float]]:
    """Seconds of a decode step for each engine, one engine right behind the other in every round."""
    prompts = [[i % 64 + 2, *range(3, 10)] for i in range(batch)]
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(times + 1):  # the first is to warm up
        for name, llm in engines.items():
            taken = []
            for n in (1, count):
                start = time.perf_counter()
                tokens(llm, prompts, n)
                taken.append(time.perf_counter() - start)
            if turn:
                seconds[name].append((taken[1] - taken[0]) / (count - 1))
    print(f"timed batch {batch}", file=sys.stderr, flush=True)
    return seconds
