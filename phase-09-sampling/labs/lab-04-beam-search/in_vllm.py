"""Given: your search beside `LLM.beam_search` of vLLM 0.22.1, which it needs; `course grade` does not.

python in_vllm.py [solution | starter]   the searches of support.py, asked anew
python in_vllm.py --record               write recorded.json, which the tests read
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm
from mini_vllm.config.engine import DEFAULT_MODEL

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_04_support")


def ask_vllm() -> dict[str, Any]:
    """All searches for all prompts: outputs and their log probabilities."""
    import vllm
    from vllm.sampling_params import BeamSearchParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_model_len=256,
        num_gpu_blocks_override=256,
        gpu_memory_utilization=0.3,
        distributed_executor_backend=UniProcExecutor,
    )
    prompts = support.make_prompts()
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    answers = []
    for search in support.SEARCHES:
        found = llm.beam_search(asked, BeamSearchParams(**search))
        answers.append(
            [
                [
                    [list(beam.tokens)[len(prompt) :], round(beam.cum_logprob, 6)]
                    for beam in output.sequences
                ]
                for prompt, output in zip(prompts, found, strict=True)
            ]
        )
    return {
        "vllm": "0.22.1", "prompts": prompts, "searches": support.SEARCHES, "answers": answers
    }  # fmt: skip


def compare(lab: Any, found: dict[str, Any]) -> tuple[int, int, float]:
    """How many searches there are, in how many the lab's tokens differ, and how far sums are apart."""
    llm = support.make_llm()
    ask = functools.partial(lab.ask_engine, llm)
    number, differ, apart = 0, 0, 0.0
    for search, answers in zip(found["searches"], found["answers"], strict=True):
        for prompt, beams in zip(found["prompts"], answers, strict=True):
            mine = lab.beam_search(ask, prompt, eos=support.EOS, **search)
            number += 1
            differ += [b.tokens[len(prompt) :] for b in mine] != [tokens for tokens, _ in beams]
            for beam, (_, total) in zip(mine, beams, strict=False):
                apart = max(apart, abs(beam.cum_logprob - total))
    return number, differ, apart


def main(which: str = "starter") -> None:
    need_vllm()
    found = ask_vllm()
    if which == "--record":
        support.RECORDED.write_text(json.dumps(found) + "\n", "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_09_04_{which}")
    number, differ, apart = compare(lab, found)
    print(f"{number} searches, {differ} with other tokens than vLLM's; sums within {apart:.0e}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
