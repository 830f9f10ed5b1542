"""What the lab's tests and scripts share: models, splits, requests, `mini_vllm`'s ranks, vLLM's records."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded.json"
RAY = HERE / "ray.json"
TINY: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 384, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 32, "vocab_size": 264,
}  # fmt: skip
MIXTRAL = TINY | {"intermediate_size": 128, "num_experts": 8}
NOORS = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_layers": 80, "num_heads": 64, "num_kv_heads": 8,
    "head_dim": 128, "vocab_size": 128_256, "bytes_per_number": 2,
}  # fmt: skip
MODELS: dict[str, tuple[Path, dict[str, Any]]] = {
    "tiny-llama": (DEFAULT_MODEL, TINY),
    "tiny-mixtral": (DEFAULT_MODEL.with_name("tiny-mixtral"), MIXTRAL),
}
BLOCK_SIZE, NUM_BLOCKS, NUM_TOKENS = 32, 64, 6
LENGTHS = (70, 9, 33, 20, 5)
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 256, "block_size": BLOCK_SIZE,
}  # fmt: skip
Calls = Counter[tuple[str, tuple[int, ...], int]]


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """One of each length."""
    return [[1, *(5 + (3 * i * i + 11 * i + n) % 120 for i in range(n - 1))] for n in lengths]


def llm_settings(split: dict[str, int]) -> dict[str, Any]:
    """What `LLM` is told of a split, here and in vLLM."""
    return {
        "tensor_parallel_size": split.get("tp", 1), "pipeline_parallel_size": split.get("pp", 1),
        "enable_expert_parallel": bool(split.get("ep", 0)),
    }  # fmt: skip


def play(
    model: str, split: dict[str, int], lengths: tuple[int, ...], budget: int
) -> list[tuple[int, int, list[Calls]]]:
    """`mini_vllm` with these ranks: of each step its tokens, its rows of logits, and each rank's calls."""
    folder, _ = MODELS[model]
    settings = SETTINGS | llm_settings(split) | {"max_num_batched_tokens": budget}
    llm = LLM(folder, num_gpu_blocks=NUM_BLOCKS, **settings)
    core: Any = llm.llm_engine.engine_core
    schedule, planned = core.scheduler.schedule, []

    def noted(*args: Any) -> Any:
        plan = schedule(*args)
        if plan.num_scheduled_tokens:
            requests = core.scheduler.requests
            ends = sum(
                requests[name].num_computed_tokens >= requests[name].num_tokens
                for name in plan.num_scheduled_tokens
            )
            planned.append((plan.total_num_scheduled_tokens, ends))
        return plan

    core.scheduler.schedule = noted
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    found: list[tuple[int, int, list[Calls]]] = []
    before: list[Calls] = []
    try:
        for number, prompt in enumerate(prompts(lengths)):
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy)
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            ledgers = core.model_executor.collective_rpc("get_ledgers")
            now = [sum((Counter(one.calls) for one in mine.values()), Calls()) for mine in ledgers]
            if len(planned) > len(found):
                calls = [a - b for a, b in zip(now, before or [Calls()] * len(now), strict=True)]
                found.append((*planned[-1], calls))
            before = now
    finally:
        core.shutdown()
    return found


@cache
def played(model: str, tp: int, pp: int, seed: int) -> list[tuple[int, int, list[Calls]]]:
    """`play` with lengths and a budget that are drawn."""
    draw = np.random.default_rng(seed)
    lengths = tuple(int(n) for n in draw.integers(2, 90, 6))
    return play(model, {"tp": tp, "pp": pp}, lengths, int(draw.integers(9, 60)))


@cache
def recorded() -> dict[str, Any]:
    """What real vLLM did: `in_vllm.py --record` says how."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def calls_of(lines: list[list[Any]]) -> Calls:
    """A rank's calls in a step, from a record's lines [kind, shape, bytes, how often]."""
    return Counter({(kind, tuple(shape), nbytes): n for kind, shape, nbytes, n in lines})


def held(worker: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a worker's weights by the names of `weight_shapes`, from a record.

    Those of linear layers come from what the layers say of themselves: vLLM's CPU build repacks their
    weights, and then the parameters show the shape (0,).
    """
    shapes = {name: tuple(shape) for name, shape in worker["linear layers"].items()}
    for name, shape in worker["parameters"].items():
        if "embed_tokens" in name or "lm_head" in name:
            shapes["vocabulary"] = tuple(shape)
        for part in ("w13", "w2"):
            if name.endswith(f"{part}_weight"):
                shapes[part] = tuple(shape)
    return shapes


def make_split(lab: Any, split: dict[str, int]) -> Any:
    """A lab's `Split` from a record's."""
    return lab.Split(split.get("tp", 1), split.get("pp", 1), bool(split.get("ep", 0)))


def steps_of(one: dict[str, Any]) -> list[tuple[int, int, list[Calls]]]:
    """A run's steps, as `play` gives them. In vLLM each request of a step has a row of logits."""
    return [
        (*ranks[0][:2], [calls_of(rank[2]) for rank in ranks])
        for ranks in zip(*one["steps"], strict=True)
    ]


def compare(lab: Any, one: dict[str, Any]) -> str:
    """A run of vLLM's beside a lab's predictions, in a few words."""
    model, split = lab.Model(**MODELS[one["model"]][1]), make_split(lab, one["split"])
    shapes = sum(
        lab.weight_shapes(model, split, rank) == held(worker)
        for rank, worker in enumerate(one["workers"])
    )
    steps = steps_of(one)
    same: Counter[str] = Counter()
    for tokens, logits, calls in steps:
        same[lab.diagnose(model, split, lab.Step(tokens, logits), calls)] += 1
    words = ", ".join(f"{n} of {len(steps)} steps {name}" for name, n in same.items())
    rank = "answers" if lab.output_rank(split) == one["output_rank"] else "DOES NOT ANSWER"
    found = f"shapes of {shapes} of {len(one['workers'])} workers; {words}"
    return f"{found}; rank {lab.output_rank(split)} {rank}"


def pack(made: dict[str, Any]) -> str:
    """A record as JSON: a line for each worker and for each step of a rank."""
    runs = []
    for name, one in made["runs"].items():
        rest = {k: v for k, v in one.items() if k not in ("workers", "steps")}
        lines = [f"  {json.dumps(name)}: {json.dumps(rest)[:-1]},"]
        workers = ",\n".join(f"    {json.dumps(worker)}" for worker in one["workers"])
        ranks = ",\n".join(
            "    [\n" + ",\n".join(f"      {json.dumps(step)}" for step in steps) + "\n    ]"
            for steps in one["steps"]
        )
        lines += [f'   "workers": [\n{workers}\n   ],', f'   "steps": [\n{ranks}\n   ]}}']
        runs.append("\n".join(lines))
    head = json.dumps({k: v for k, v in made.items() if k != "runs"})[:-1]
    return f'{head},\n "runs": {{\n' + ",\n".join(runs) + "\n}}\n"


def nbytes(calls: Calls) -> int:
    """What a rank's own arrays weigh, all together."""
    return sum(call[2] * times for call, times in calls.items())
