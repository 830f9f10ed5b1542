"""Given: random models as tables, searches that real vLLM has answered, and an engine to ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLM

RECORDED = Path(__file__).resolve().parent / "recorded.json"
EOS = 2
SEARCHES: list[dict[str, Any]] = [
    *({"beam_width": width, "max_tokens": 10} for width in (1, 2, 3, 4)),
    {"beam_width": 3, "max_tokens": 10, "length_penalty": 0.0},
    {"beam_width": 3, "max_tokens": 10, "length_penalty": 3.0},
    {"beam_width": 3, "max_tokens": 8, "ignore_eos": True},
]


def make_prompts() -> list[list[int]]:
    """Four texts of the corpus, each cut off six tokens before its end."""
    from course.parity.tokens import corpus_texts
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    texts = [tokenizer.encode(text)[:-6] for text in corpus_texts(3, 4)]
    return [text[-length:] for text, length in zip(texts, (6, 20, 48, 90), strict=True)]


def recorded() -> dict[str, Any]:
    """Prompts, searches, and vLLM's beams: per search, per prompt, output and its log probability
    (`in_vllm.py --record`)."""
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


def make_llm() -> LLM:
    """The engine on the shipped model."""
    return LLM(block_size=16, max_model_len=256, num_gpu_blocks_override=256)


# ---- models as tables ----------------------------------------------------------------------------


@dataclass
class Asking:
    """An `ask` for a search that counts.

    Attributes:
        probs: sequence to the probability of each next token.
        steps: the sequences asked for, one list per call.
        num_candidates: what was asked for, one per call.
    """

    probs: Any
    steps: list[list[list[int]]]
    num_candidates: list[int]

    def __call__(self, sequences: list[list[int]], num_candidates: int) -> list[dict[int, float]]:
        self.steps.append([list(tokens) for tokens in sequences])
        self.num_candidates.append(num_candidates)
        return [self.answer(tokens, num_candidates) for tokens in sequences]

    def answer(self, tokens: Sequence[int], num_candidates: int) -> dict[int, float]:
        probs = self.probs(tuple(tokens))
        best = sorted(probs, key=lambda token: -probs[token])[:num_candidates]
        return {token: float(np.log(probs[token])) for token in best}


def asking(probs: Any) -> Asking:
    """Ask a function from sequence to probabilities."""
    return Asking(probs, [], [])


def random_model(number: int, vocabulary: Sequence[int] = (0, 1, 2, 3)) -> Asking:
    """The random model of this number: for each sequence any distribution, none likelier than another."""
    known: dict[tuple[int, ...], dict[int, float]] = {}

    def probs(tokens: tuple[int, ...]) -> dict[int, float]:
        if tokens not in known:
            rng = np.random.RandomState([number, *tokens])
            drawn = rng.dirichlet([1.0] * len(vocabulary)).tolist()
            known[tokens] = dict(zip(vocabulary, drawn, strict=True))
        return known[tokens]

    return asking(probs)


def count_tokens(llm: LLM) -> list[list[tuple[int, int]]]:
    """A list that gets, for each `generate`, how many tokens each prompt has and how many are computed."""
    steps: list[list[tuple[int, int]]] = []
    generate = llm.generate

    def counted(*args: Any, **kwargs: Any) -> Any:
        outputs = generate(*args, **kwargs)
        lengths = [len(output.prompt_token_ids or ()) for output in outputs]
        cached = [output.num_cached_tokens or 0 for output in outputs]
        steps.append([(n, n - c) for n, c in zip(lengths, cached, strict=True)])
        return outputs

    llm.generate = counted  # type: ignore[method-assign]
    return steps
