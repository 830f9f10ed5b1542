"""Given: your stages beside vLLM's functions, and your order beside `Sampler.forward`. Needs vLLM 0.22.1.

    python in_vllm.py [solution | starter]   10,000 rows a stage, 2,000 batches
    python in_vllm.py --record               write answers.json, which the tests read

Every row has a generator, greedy rows too: with one missing, vLLM's CPU path ignores them all. top_p's random
rows hold no ties, for which tokens of a tie go is up to `torch.sort`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_01_support")
DEFAULTS = {
    "prompt": (), "output": (), "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
    "allowed_token_ids": None, "bad_words": (), "logit_bias": {},
}  # fmt: skip


class Vllm:
    """vLLM's sampler and its parts, on rows of `vocab` logits."""

    def __init__(self) -> None:
        import torch
        import vllm
        from vllm.v1.sample import logits_processor
        from vllm.v1.sample.sampler import Sampler

        torch.compiler.set_stance("force_eager")
        self.torch, self.vllm, self.parts = torch, vllm, logits_processor
        self.sampler = Sampler(logprobs_mode="processed_logits")
        self.config = vllm.config.VllmConfig()

    def processor(self, kind: str, requests: list[dict[str, Any]]) -> Any:
        """One of vLLM's own logits processors, told of these requests."""
        found = getattr(self.parts, kind)(self.config, self.torch.device("cpu"), False)
        names = ("temperature", "min_p", "logit_bias")
        added = [
            (i, self.vllm.SamplingParams(**{name: one[name] for name in names}), [], [])
            for i, one in enumerate(requests)
        ]
        found.update_state(self.parts.BatchUpdate(len(added), [], added, []))
        return found

    def metadata(self, requests: list[dict[str, Any]], vocab: int, seed: int) -> Any:
        """What vLLM's input batch would hand to its sampler."""
        from vllm.v1.sample.metadata import SamplingMetadata

        torch = self.torch
        temperature = torch.tensor([one["temperature"] for one in requests])
        barred = torch.zeros(len(requests), vocab, dtype=torch.bool)
        for i, one in enumerate(requests):
            if one["allowed_token_ids"] is not None:
                barred[i] = True
                barred[i, list(one["allowed_token_ids"])] = False
        width = max(len(one["prompt"]) for one in requests)
        prompts = [[*one["prompt"], *[vocab] * (width - len(one["prompt"]))] for one in requests]

        def column(name: str) -> Any:
            return torch.tensor([one[name] for one in requests])

        return SamplingMetadata(
            temperature=temperature,
            all_greedy=bool((temperature < 1e-5).all()),
            all_random=not bool((temperature < 1e-5).any()),
            top_p=column("top_p"),
            top_k=torch.tensor([one["top_k"] or vocab for one in requests]),
            generators={
                i: torch.Generator().manual_seed(100 * seed + i) for i in range(len(requests))
            },
            max_num_logprobs=-1,
            no_penalties=False,
            prompt_token_ids=torch.tensor(prompts, dtype=torch.int64),
            frequency_penalties=column("frequency_penalty"),
            presence_penalties=column("presence_penalty"),
            repetition_penalties=column("repetition_penalty"),
            output_token_ids=[list(one["output"]) for one in requests],
            allowed_token_ids_mask=barred,
            bad_words_token_ids={
                i: [list(word) for word in one["bad_words"]] for i, one in enumerate(requests)
            },
            logitsprocs=self.parts.LogitsProcessors(
                [
                    self.processor(kind, requests)
                    for kind in ("LogitBiasLogitsProcessor", "MinPLogitsProcessor")
                ]
            ),
        )

    def sample(self, logits: Any, fields: list[dict[str, Any]], seed: int) -> tuple[list[int], Any]:
        """The tokens of `Sampler.forward`, and the logits [n, V] that they were drawn from."""
        requests = [DEFAULTS | one for one in fields]
        metadata = self.metadata(requests, logits.shape[1], seed)
        out = self.sampler(self.torch.tensor(logits), metadata)
        left = out.logprobs_tensors.logprobs if out.logprobs_tensors is not None else None
        return out.sampled_token_ids[:, 0].tolist(), left.numpy()

    def stage(self, name: str, logits: Any, fields: dict[str, Any]) -> Any:
        """One row [V] after vLLM's function for this stage alone."""
        from vllm.v1.sample.ops.bad_words import apply_bad_words
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

        row, torch = self.torch.tensor(logits)[None], self.torch
        request = DEFAULTS | fields
        metadata = self.metadata([request], len(logits), 0)
        if name == "allowed ids":
            metadata.no_penalties = True
            row = self.sampler.apply_logits_processors(row, metadata, False)
        elif name == "bad words":
            apply_bad_words(row, metadata.bad_words_token_ids, metadata.output_token_ids)
        elif name == "logit bias":
            row = self.processor("LogitBiasLogitsProcessor", [request]).apply(row)
        elif name == "penalties":
            row = self.sampler.apply_penalties(row, metadata, metadata.output_token_ids)
        elif name == "temperature":
            row = self.sampler.apply_temperature(row, metadata.temperature, True)
        elif name == "min_p":
            row = self.processor("MinPLogitsProcessor", [request]).apply(row)
        else:
            row = apply_top_k_top_p_pytorch(
                row,
                torch.tensor([request["top_k"]]) if name == "top_k" else None,
                torch.tensor([request["top_p"]]) if name == "top_p" else None,
                allow_cpu_sync=True,
            )
        return row[0].numpy()


def compare(lab: ModuleType, vllm: Vllm, rows: int, batches: int) -> Counter[str]:
    """In how many cases the lab leaves other tokens or other logits, or samples another token."""
    differ: Counter[str] = Counter()
    for name in support.STAGE_NAMES:
        for seed in range(rows):
            logits, fields = support.random_stage(name, seed)
            mine = lab.STAGES[name](logits.copy(), lab.Request(**fields))
            theirs = vllm.stage(name, logits, fields)
            differ[name] += not np.allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    for seed in range(batches):
        logits, fields = support.random_batch(seed)
        requests = support.make_requests(lab, fields)
        noise = support.noise_of(seed, len(requests))
        tokens, _ = vllm.sample(logits, fields, seed)
        differ["forward"] += lab.sample(logits.copy(), requests, noise).tolist() != tokens
    return differ


def record(vllm: Vllm) -> dict[str, Any]:
    """What answers.json holds."""

    def plain(row: Any) -> list[float | None]:
        return [float(str(np.float32(one))) if np.isfinite(one) else None for one in row]

    def left(cases: dict[str, Any]) -> dict[str, Any]:
        """Each case's logits at the end, and the token of a greedy one."""
        found = {}
        for name, fields in cases.items():
            tokens, logits = vllm.sample(support.ROW[None], [fields], 0)
            greedy = fields.get("temperature") == 0
            found[name] = tokens if greedy else plain(logits[0])
        return found

    return {
        "vllm": "0.22.1",
        "questions": left(support.QUESTIONS),
        "pairs": left(support.PAIRS),
        "stages": {
            name: [
                plain(vllm.stage(name, *support.random_stage(name, seed)))
                for seed in range(RECORDED_ROWS)
            ]
            for name in support.STAGE_NAMES
        },
        "batches": [
            vllm.sample(*support.random_batch(seed), seed)[0] for seed in range(RECORDED_BATCHES)
        ],
    }


RECORDED_ROWS, RECORDED_BATCHES = 12, 60


def main(which: str = "starter") -> None:
    need_vllm()
    vllm = Vllm()
    if which == "--record":
        text = json.dumps(record(vllm), separators=(",", ":"))
        support.ANSWERS.write_text(text + "\n", encoding="utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_09_01_{which}")
    rows, batches = 10_000, 2_000
    for name, number in compare(lab, vllm, rows, batches).items():
        print(f"{name:13}{batches if name == 'forward' else rows:7,} cases{number:5} differ")


if __name__ == "__main__":
    main(*sys.argv[1:2])
