"""Given: your drafts beside those of vLLM's own function. Needs vLLM 0.22.1; `course grade` does not.

python in_vllm.py [solution | starter]   20,000 random texts
python in_vllm.py --record               write answers.json, which the tests read
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
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
support = load_module(HERE / "support.py", "lab_08_01_support")


def vllm_draft(case: Any) -> list[int]:
    """What vLLM drafts."""
    from vllm.v1.spec_decode import ngram_proposer

    found: list[int] = ngram_proposer._find_longest_matched_ngram_and_propose_tokens(
        np.array(case.tokens, np.int32), case.min_n, case.max_n, case.max_model_len, case.k
    ).tolist()
    return found


def compare(lab: Any, number: int) -> tuple[int, list[Any]]:
    """How many cases vLLM drafts for, and those in which the lab drafts otherwise."""
    drafting, differ = 0, []
    for case in support.random_cases(number):
        want = vllm_draft(case)
        drafting += bool(want)
        if lab.draft(case.tokens, case.min_n, case.max_n, case.k, case.max_model_len) != want:
            differ.append(case)
    return drafting, differ


PROMPTS = [  # with k, min_n, max_n and max_tokens
    ("The scheduler", 3, 2, 4, 90),
    ("Prefix caching", 5, 1, 3, 60),
    ("A request that is preempted keeps its tokens. A request that is preempted", 4, 5, 5, 90),
    ("Blocks 1 2 3 4, blocks 1 2 3 4, blocks 1 2", 2, 3, 5, 70),
]


def ask_vllm(prompt: str, spec: dict[str, Any] | None, max_tokens: int) -> dict[str, Any]:
    """A prompt's tokens and counters at temperature 0, on the shipped model, alone."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_model_len=512,
        distributed_executor_backend=UniProcExecutor,
        disable_log_stats=False,
        speculative_config=spec,
    )
    engine = llm.llm_engine
    runner = engine.model_executor.driver_worker.worker.model_runner
    steps = count_steps(runner)
    params = vllm.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    prefix = "vllm:spec_decode_"
    counted = {
        metric.name.removeprefix(prefix): getattr(metric, "values", getattr(metric, "value", None))
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix)
    }
    text = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    return {
        "text": text,
        "num_steps": steps(),
        "num_prompt_tokens": len(output.prompt_token_ids),
    } | counted


def count_steps(runner: Any) -> Callable[[], int]:
    """From now on, how often the model has run over some tokens."""
    steps = 0
    execute_model = runner.execute_model

    def counting(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += scheduler_output.total_num_scheduled_tokens > 0
        return execute_model(scheduler_output, *args, **kwargs)

    runner.execute_model = counting
    return lambda: steps


def record_runs() -> list[dict[str, Any]]:
    """Each prompt with drafts, for the counters, and without, for the text."""
    runs = []
    for prompt, k, min_n, max_n, max_tokens in PROMPTS:
        asked = {"prompt": prompt, "k": k, "min_n": min_n, "max_n": max_n, "max_tokens": max_tokens}
        spec = {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_min": min_n,
            "prompt_lookup_max": max_n,
        }
        plain = ask_vllm(prompt, None, max_tokens + k)["text"]
        drafted = ask_vllm(prompt, spec, max_tokens)
        assert drafted.pop("text") == plain[:-k], f"{prompt!r}: the text changed with drafts"
        runs.append(asked | {"text": plain} | drafted)
    return runs


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        drafts = [vllm_draft(case) for case in support.random_cases(support.NUM_RECORDED)]
        found = {"vllm": "0.22.1", "drafts": drafts, "runs": record_runs()}
        support.ANSWERS.write_text(json.dumps(found) + "\n", "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_08_01_{which}")
    drafting, differ = compare(lab, 20_000)
    print(f"20,000 texts, {drafting:,} with drafts, {len(differ):,} drafted otherwise than vLLM's")
    for case in differ[:1]:
        mine = lab.draft(case.tokens, case.min_n, case.max_n, case.k, case.max_model_len)
        print(f"the first: {case}\n  vLLM {vllm_draft(case)}, you {mine}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
