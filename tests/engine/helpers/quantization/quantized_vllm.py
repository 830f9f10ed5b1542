"""Load quantised checkpoints into vLLM one after another: `python quantized_vllm.py JOB`, prints JSON.

JOB is a JSON list of {"folder", "dtype", "prompts", "max_tokens"}. The answer, one for each: the tokens and
the prompt's log probabilities, the classes that one linear layer got, and what the log said of kernels;
or `error`, what vLLM refused it with.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ["VLLM_CPU_INT4_W4A8"] = "0"  # a CPU with AMX would round AWQ's activations to 8 bits


class Said(logging.Handler):
    """The lines of vLLM's log that name a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "LinearKernel" in line and record.levelno == logging.INFO:
            self.lines.append(line)


def play(case: dict[str, Any]) -> dict[str, Any]:
    """One checkpoint: loaded, asked, dropped."""
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        case["folder"], dtype=case["dtype"], enforce_eager=True, block_size=16, max_model_len=256,
        max_num_seqs=8, seed=0, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=case["max_tokens"], prompt_logprobs=0)
    outputs = llm.generate(case["prompts"], params, use_tqdm=False)
    worker: Any = llm.llm_engine.model_executor
    layer = worker.driver_worker.worker.model_runner.model.model.layers[0].mlp.down_proj
    parts = [layer.quant_method, getattr(layer, "scheme", None)]
    parts += [getattr(part, name, None) for part in parts for name in ("kernel", "int8_linear")]
    return {
        "tokens": [list(o.outputs[0].token_ids) for o in outputs],
        "logprobs": [
            [next(iter(at.values())).logprob for at in o.prompt_logprobs or () if at]
            for o in outputs
        ],
        "classes": [type(part).__name__ for part in parts if part is not None],
    }


def main() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    said = Said()
    logging.getLogger("vllm").addHandler(said)
    answers = []
    for case in json.loads(sys.argv[1]):
        said.lines.clear()
        try:
            answer = play(case)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.append(answer | {"said": list(said.lines)})
        gc.collect()
        cleanup_dist_env_and_memory()
    print("ANSWER " + json.dumps(answers))


if __name__ == "__main__":
    main()
