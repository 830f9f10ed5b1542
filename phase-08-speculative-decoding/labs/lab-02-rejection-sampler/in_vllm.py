"""Given: your sampler beside vLLM's own, on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   2,000 steps: how many tokens differ
    python in_vllm.py --record               write answers.json, which the tests read

Every request has a seed of its own here, and so has a copy of its generator: what vLLM draws from the one,
this script draws from the other. vLLM's CPU kernels judge in float32, so `u` is rounded to it. Its
`expand_kernel`, which hands each draft row its request's temperature, is replaced: on a CPU that of 0.22.1
writes into a copy, and the temperature is lost.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_08_02_support")
RULES = ("greedy", "certain", "probabilistic", "mixed")
RECORDED = 24


class Expand:
    """What vLLM's Triton kernel of this name does."""

    def __getitem__(self, grid: Any) -> Any:
        return self

    def __call__(self, output: Any, values: Any, ends: Any, old: int, new: int, **_: Any) -> None:
        start = 0
        for value, end in zip(values.tolist(), ends.tolist(), strict=True):
            output[start:end] = new if value == old else value
            start = end


def use_cpu_kernels() -> Any:
    """vLLM's module, with the kernels that its CPU worker puts in."""
    import torch
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler as module

    torch.compiler.set_stance("force_eager")
    for name in ("rejection_greedy_sample", "rejection_random_sample", "sample_recovered_tokens"):
        setattr(module, f"{name}_kernel", getattr(cpu_triton_utils, f"{name}_kernel"))
    module.expand_kernel = Expand()
    return module


def make_step(seed: int, vocab: int) -> dict[str, Any]:
    """1 to 4 requests with up to 4 drafts each; drafts that are likely, drawn, or nonsense."""
    rng = np.random.RandomState(seed)
    rule = RULES[seed % 4]
    n = int(rng.randint(1, 5))
    counts = rng.randint(0, 5, n).tolist()
    counts[int(rng.randint(n))] = int(rng.randint(1, 5))
    total = sum(counts)
    logits = (rng.standard_normal((total + n, vocab)) * 1.5).round(2).astype(np.float32)
    bonus = np.cumsum(np.array(counts) + 1) - 1
    judged = np.delete(logits, bonus, axis=0)
    guess = np.exp(judged + rng.standard_normal(judged.shape))
    guess = (guess / guess.sum(axis=1, keepdims=True)).astype(np.float32)
    drafts = support.draw(rng, guess)
    if rule in ("greedy", "mixed"):
        drafts = np.where(rng.random_sample(total) < 0.6, judged.argmax(axis=1), drafts)
    greedy = {"greedy": np.ones(n, bool), "mixed": rng.random_sample(n) < 0.5}
    return {
        "rule": rule,
        "draft_token_ids": drafts.tolist(),
        "num_draft_tokens": counts,
        "draft_probs": guess.tolist() if rule == "probabilistic" or rng.randint(2) else None,
        "logits": logits.tolist(),
        "is_greedy": greedy.get(rule, np.zeros(n, bool)).tolist(),
    } | ({"draft_probs": None} if rule == "certain" else {})


def ask_vllm(module: Any, step: dict[str, Any], seed: int) -> None:
    """Puts vLLM's draws and tokens into the step."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    counts = step["num_draft_tokens"]
    n, rows = len(counts), len(step["logits"])
    vocab = len(step["logits"][0])
    greedy = torch.tensor(step["is_greedy"])
    mixed = SamplingMetadata(
        temperature=None if greedy.all() else (~greedy).float(),
        all_greedy=bool(greedy.all()),
        all_random=not greedy.any(),
        top_p=None,
        top_k=None,
        generators={i: torch.Generator().manual_seed(1000 * seed + i) for i in range(n)},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(0),
        presence_penalties=torch.zeros(0),
        repetition_penalties=torch.zeros(0),
        output_token_ids=[[] for _ in range(n)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    ends = np.cumsum(np.array(counts) + 1)
    metadata = SpecDecodeMetadata(
        draft_token_ids=torch.tensor(step["draft_token_ids"], dtype=torch.int32),
        num_draft_tokens=counts,
        cu_num_draft_tokens=torch.tensor(np.cumsum(counts), dtype=torch.int32),
        cu_num_sampled_tokens=torch.tensor(ends, dtype=torch.int32),
        target_logits_indices=torch.tensor(np.delete(np.arange(rows), ends - 1)),
        bonus_logits_indices=torch.tensor(ends - 1),
        logits_indices=torch.arange(rows),
    )
    probs = step["draft_probs"]
    out = module.RejectionSampler(Sampler())(
        metadata,
        None if probs is None else torch.tensor(probs),
        torch.tensor(step["logits"]),
        mixed,
    )
    step["tokens"] = out.sampled_token_ids.tolist()

    # The same generators again, asked for the same things in vLLM's order.
    twins = [torch.Generator().manual_seed(1000 * seed + i) for i in range(n)]
    if greedy.all():
        step["bonus_inv_q"] = step["inv_q"] = np.ones((n, vocab)).tolist()
        step["uniform_probs"] = [0.0] * sum(counts)
        return
    noise = [torch.empty(vocab).exponential_(generator=twin) for twin in twins]
    step["bonus_inv_q"] = [one.reciprocal().tolist() for one in noise]
    uniform = [
        torch.empty(k, dtype=torch.float64).uniform_(generator=twin) if k else torch.empty(0)
        for k, twin in zip(counts, twins, strict=True)
    ]
    step["uniform_probs"] = torch.cat([one.float() for one in uniform]).tolist()
    noise = [torch.empty(vocab).exponential_(generator=twin) for twin in twins]
    step["inv_q"] = [one.reciprocal().tolist() for one in noise]


def short(value: Any) -> Any:
    """Float32 numbers in as few digits as say which."""
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(str(np.float32(value))) if isinstance(value, float) else value


def main(which: str = "starter") -> None:
    need_vllm()
    module = use_cpu_kernels()
    if which == "--record":
        steps = [make_step(seed, 5) for seed in range(RECORDED)]
        for seed, step in enumerate(steps):
            ask_vllm(module, step, seed)
        text = json.dumps({"vllm": "0.22.1", "steps": short(steps)}, separators=(",", ":"))
        support.ANSWERS.write_text(text + "\n", encoding="utf-8")
        print(f"{len(steps)} steps")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_08_02_{which}")
    seen: dict[str, Counter[str]] = {rule: Counter() for rule in RULES}
    for seed in range(2000):
        step = make_step(seed, 5 + seed % 40)
        ask_vllm(module, step, seed)
        got = np.asarray(lab.rejection_sample(**support.arguments(step)))
        want = np.array(step["tokens"])
        count = seen[step["rule"]]
        kept = (want >= 0).sum(axis=1)
        count["steps"] += 1
        count["drafts"] += sum(step["num_draft_tokens"])
        count["accepted"] += int(kept.sum()) - len(kept)
        count["bonus"] += int((kept == np.array(step["num_draft_tokens"]) + 1).sum())
        count["differ"] += int((got != want).sum())
    print(f"{'requests':14}{'steps':>7}{'drafts':>8}{'accepted':>10}{'bonus':>7}{'differ':>8}")
    for rule, count in seen.items():
        print(
            f"{rule:14}{count['steps']:7}{count['drafts']:8}{count['accepted']:10}{count['bonus']:7}"
            f"{count['differ']:8}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
