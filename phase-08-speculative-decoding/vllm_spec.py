"""What vLLM makes of speculative decoding: settings by method, both rules, a run with the course's head.

    python phase-08-speculative-decoding/vllm_spec.py              all topics
    python phase-08-speculative-decoding/vllm_spec.py methods      one

Needs vLLM 0.22.1; its CPU build will do, and no GPU is asked. `methods` is vLLM's own configuration as on
an H100 (phase 05's stand-in), `rules` its `rejection_sample` on drawn numbers, `counters` the whole engine on
the shipped Llama.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from runs import CHECKPOINTS, EAGLE, NGRAM, PROMPT

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL

PHASES = Path(__file__).resolve().parents[1]
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_for_phase_08")
Say = Callable[[str], None]


# --- methods ---


def configured(usage: Any, given: dict[str, Any]) -> Any:
    """vLLM's `SchedulerConfig` for the shipped model: `given`, else the defaults for this usage."""
    from vllm.engine.arg_utils import EngineArgs

    # New arguments each time: vLLM writes the defaults that it finds into them.
    args = EngineArgs(model=str(DEFAULT_MODEL), dtype="bfloat16", max_model_len=512, **given)
    return args.create_engine_config(usage).scheduler_config


def methods(say: Say) -> None:
    """What each method does to the configuration, with the defaults of `vllm serve` and of `LLM`."""
    import sys

    sys.path.insert(0, str(PHASES / "phase-05-cuda-graphs"))  # it imports its neighbours by name
    paper = load_module(PHASES / "phase-05-cuda-graphs/vllm_on_paper.py", "paper_for_phase_08")
    paper.h100()
    from vllm.usage.usage_lib import UsageContext

    usages = (UsageContext.OPENAI_API_SERVER, UsageContext.LLM_CLASS)
    drafter = {"method": "draft_model", "model": str(CHECKPOINTS / "tiny-llama")}
    lookup: dict[str, Any] = {"speculative_config": NGRAM}
    model: dict[str, Any] = {"speculative_config": drafter | {"num_speculative_tokens": 3}}
    cases: dict[str, dict[str, Any]] = {
        "no drafts": {},
        "ngram": lookup,
        "ngram, --async-scheduling": lookup | {"async_scheduling": True},
        "ngram_gpu": {"speculative_config": NGRAM | {"method": "ngram_gpu"}},
        "draft_model": model,
        "draft_model, --async-scheduling": model | {"async_scheduling": True},
        "eagle": {"speculative_config": EAGLE | {"model": str(EAGLE["model"])}},
    }
    say(f"{'method':34}async scheduling   tokens per step: serve, LLM")
    for name, given in cases.items():
        try:
            made = [configured(usage, given) for usage in usages]
        except ValueError as error:
            refused = str(error).split("Value error, ")[-1].split(" [type=")[0]
            say(f"{name:34}refused: {refused[:36]}...")
            continue
        on = "/".join(dict.fromkeys("on" if one.async_scheduling else "off" for one in made))
        budgets = [one.max_num_scheduled_tokens or one.max_num_batched_tokens for one in made]
        say(f"{name:34}{on:16}   {budgets[0]:,}  {budgets[1]:>6,}")


# --- rules ---


def rules(say: Say) -> None:
    """The guide's p and q: how often a draft is accepted, and each token comes, in 120,000 draws."""
    import torch
    import vllm.utils.cpu_triton_utils as cpu
    from vllm.v1.sample import rejection_sampler as judge

    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.7, 0.1])
    number = 120_000
    torch.manual_seed(0)
    ones = torch.ones(number, dtype=torch.int64)
    drawn = torch.multinomial(q, number, replacement=True)
    cases = {
        "greedy drafts, judged as certain": (ones, None),
        "drawn drafts, judged by their q": (drawn, q.repeat(number, 1)),
        "drawn drafts, judged as certain": (drawn, None),
    }
    kernels = (
        "rejection_greedy_sample_kernel",
        "rejection_random_sample_kernel",
        "sample_recovered_tokens_kernel",
    )
    metadata = SimpleNamespace(
        all_greedy=False, all_random=True, temperature=torch.ones(number), generators={}
    )
    with patch.multiple(judge, **{name: getattr(cpu, name) for name in kernels}):
        for name, (drafts, probs) in cases.items():
            tokens = judge.rejection_sample(
                drafts, [1] * number, 1, ones.cumsum(0), probs, p.log().repeat(number, 1),
                ones[:, None], metadata,
            )  # fmt: skip
            accepted = (tokens[:, 1] >= 0).double().mean()
            shares = [round(float((tokens[:, 0] == x).double().mean()), 2) for x in range(3)]
            say(f"{name}: {accepted:.2f} accepted; mat, sofa, roof {shares}")


# --- counters ---


def counters(say: Say) -> None:
    """The guide's text with the EAGLE head, and vLLM's counters."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        str(CHECKPOINTS / "tiny-llama"),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_model_len=512,
        speculative_config=EAGLE | {"model": str(EAGLE["model"])},
        disable_log_stats=False,
        distributed_executor_backend=UniProcExecutor,
    )
    [output] = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=256), use_tqdm=False)
    say(f"{len(output.outputs[0].token_ids)} tokens with the EAGLE head")
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode"):
            value = getattr(metric, "values", None) or metric.value  # type: ignore[attr-defined]
            say(f"    {metric.name} {value}")


TOPICS = {"methods": methods, "rules": rules, "counters": counters}


def main() -> None:
    os.environ |= topics.ON_PAPER | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    names = topics.wanted(TOPICS)
    if len(names) > 1:  # one topic puts another card in the place of this machine
        topics.each_apart(__file__, names)
        return
    topics.tell(names[0], TOPICS[names[0]])


if __name__ == "__main__":
    main()
