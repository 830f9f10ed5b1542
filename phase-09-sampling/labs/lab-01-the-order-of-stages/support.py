"""What the lab's tests and scripts share: requests to sample for, and what vLLM made of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.generator import TorchGenerator

Array = NDArray[np.float32]
Fields = dict[str, Any]
ANSWERS = Path(__file__).resolve().parent / "answers.json"
VOCAB = 10
ROW = np.log(np.array([0.40, 0.25, 0.15, 0.10, 0.06, 0.04], np.float32))
"""The README's six tokens."""

QUESTIONS: dict[str, Fields] = {
    "min_p and top_p": {"min_p": 0.2, "top_p": 0.85},
    "top_k and top_p": {"top_k": 3, "top_p": 0.7},
    "a hot request": {"temperature": 2.0, "min_p": 0.35},
    "a barred favourite": {"bad_words": [[0]], "top_k": 2, "min_p": 0.5},
    "a penalty in the heat": {
        "temperature": 2.0, "output": [0], "presence_penalty": 1.0, "min_p": 0.7,
    },
    "greedy": {"temperature": 0.0, "prompt": [0], "output": [1], "repetition_penalty": 3.0},
}  # fmt: skip

PAIRS: dict[str, Fields] = {
    "allowed ids and min_p": {"allowed_token_ids": [2, 3, 4, 5], "min_p": 0.5},
    "allowed ids and top_k": {"allowed_token_ids": [1, 3, 4, 5], "top_k": 2},
    "allowed ids and top_p": {"allowed_token_ids": [1, 2, 5], "top_p": 0.6},
    "bad words and min_p": {"output": [5], "bad_words": [[5, 0]], "min_p": 0.5},
    "bad words and top_k": {"output": [5], "bad_words": [[5, 1], [4]], "top_k": 3},
    "bad words and top_p": {"bad_words": [[0]], "top_p": 0.6},
    "logit bias and penalties": {
        "logit_bias": {3: 4.0, 5: 2.0}, "output": [3, 5], "repetition_penalty": 1.5,
    },
    "logit bias and min_p": {"logit_bias": {0: -2.0}, "min_p": 0.5},
    "penalties and temperature": {
        "temperature": 2.0, "output": [0, 0, 2], "frequency_penalty": 0.5, "presence_penalty": 0.5,
    },
    "penalties and top_k": {"output": [0, 1], "presence_penalty": 2.0, "top_k": 2},
    "penalties and top_p": {"prompt": [0], "repetition_penalty": 2.0, "top_p": 0.5},
    "temperature and min_p": {"temperature": 0.5, "min_p": 0.3},
    "temperature and top_p": {"temperature": 0.5, "top_p": 0.8},
    "min_p and top_p": {"min_p": 0.3, "top_p": 0.75},
    "top_k and top_p": {"top_k": 2, "top_p": 0.6},
}  # fmt: skip
"""Two stages at a time on the README's row: in the other order each leaves something else."""


def recorded() -> dict[str, Any]:
    """What vLLM made of the cases below; see in_vllm.py. A barred token's logit is null there."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def as_row(values: list[float | None]) -> Array:
    """A recorded row of logits."""
    return np.array([-np.inf if value is None else value for value in values], np.float32)


def survivors(logits: Array) -> list[int]:
    """The tokens that are not barred."""
    found: list[int] = np.flatnonzero(np.isfinite(logits)).tolist()
    return found


def some(rng: np.random.RandomState, number: int) -> list[int]:
    """Token ids, some of them more than once."""
    found: list[int] = rng.randint(0, VOCAB, number).tolist()
    return found


def random_stage(name: str, seed: int) -> tuple[Array, Fields]:
    """A row and a request that asks for this stage alone."""
    rng = np.random.RandomState([seed, sum(map(ord, name))])
    logits = (3 * rng.standard_normal(VOCAB)).astype(np.float32)
    if name == "top_k":
        logits = (logits / 2).round().astype(np.float32)  # with ties
    if name != "temperature" and rng.randint(3) == 0:
        logits[rng.randint(VOCAB)] = np.float32(-np.inf)
    output = some(rng, rng.randint(0, 8))
    knobs: dict[str, Fields] = {
        "allowed ids": {"allowed_token_ids": some(rng, rng.randint(1, 5))},
        "bad words": {"bad_words": random_words(rng, output)},
        "logit bias": {"logit_bias": dict.fromkeys(some(rng, 3), float(rng.randint(-5, 6)))},
        "penalties": {
            "prompt": some(rng, 4),
            "presence_penalty": float(rng.uniform(-2, 2)),
            "frequency_penalty": float(rng.uniform(-2, 2)),
            "repetition_penalty": float(rng.uniform(0.5, 2)),
        },
        "temperature": {"temperature": float(rng.uniform(0.1, 2))},
        "min_p": {"min_p": float(rng.uniform(0, 0.5))},
        "top_k": {"top_k": int(rng.randint(1, VOCAB + 1))},
        "top_p": {"top_p": float(rng.uniform(0.05, 1))},
    }
    return logits, {"output": output} | knobs[name]


def random_words(rng: np.random.RandomState, output: list[int]) -> list[list[int]]:
    """Bad words of one to three tokens, some of which the output has begun."""
    words = [some(rng, rng.randint(1, 4)) for _ in range(3)]
    for length in (1, 2):
        if len(output) >= length:
            words.append([*output[-length:], *some(rng, 1)])
    return words


def random_batch(seed: int) -> tuple[Array, list[Fields]]:
    """1 to 4 rows, and a request for each that asks for some of the stages."""
    rng = np.random.RandomState([seed, 9])
    n = int(rng.randint(1, 5))
    logits = (3 * rng.standard_normal((n, VOCAB))).astype(np.float32)
    requests: list[Fields] = []
    for _ in range(n):
        fields: Fields = {}
        for name in STAGE_NAMES:
            if rng.randint(2):
                fields |= random_stage(name, int(rng.randint(1 << 30)))[1]
        output = some(rng, rng.randint(0, 8))
        fields |= {"output": output, "prompt": some(rng, 3)}
        if "bad_words" in fields:
            fields["bad_words"] = random_words(rng, output)
        if "allowed_token_ids" in fields:  # leave some token
            fields["allowed_token_ids"] = [*range(0, VOCAB, 2), *some(rng, 2)]
            fields["bad_words"] = fields.get("bad_words", [])[:2]
        if rng.randint(4) == 0:
            fields["temperature"] = float(rng.choice([0.0, 0.000005]))
        requests.append(fields)
    return logits, requests


STAGE_NAMES = (
    "allowed ids", "bad words", "logit bias", "min_p", "penalties", "temperature", "top_k", "top_p",
)  # fmt: skip


def noise_of(seed: int, n: int) -> Array:
    """What n requests with seeds of their own draw: torch's numbers, on a CPU."""
    streams = [TorchGenerator(100 * seed + i) for i in range(n)]
    return np.stack([stream.standard_exponential(VOCAB) for stream in streams])


def make_requests(lab: ModuleType, fields: list[Fields]) -> list[Any]:
    """The lab's own requests."""
    return [lab.Request(**one) for one in fields]
