"""`n` above 1: so many requests with seeds that follow each other, which share the prompt's full blocks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.engine.helpers.sampling.parallel_samples import play
from tests.engine.helpers.thorough import either

BLOCK = 16


def requests(count: int) -> list[dict[str, Any]]:
    """Prompts of 1 to 200 tokens with n from 1 to 8; each second one finds an empty prefix cache."""
    rng = random.Random(0)
    lengths = [1, 16, 17, 32, 33, 120, *(rng.randint(1, 200) for _ in range(count))][:count]
    return [
        {
            "prompt": [1, *(rng.randrange(8, 264) for _ in range(length - 1))],
            "n": 1 + number % 8,
            "seed": 7 + 100 * number,
            "forget": number % 2 == 0,
        }
        for number, length in enumerate(lengths)
    ]


def check(asked: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    """Seeds count up; the first child computes the prompt, the others find its full blocks."""
    for one, answer in zip(asked, answers, strict=True):
        n, length = one["n"], len(one["prompt"])
        shared = BLOCK * ((length - 1) // BLOCK)
        where = f"n={n}, a prompt of {length} tokens"
        assert answer["seeds"] == [one["seed"] + i for i in range(n)], where
        assert answer["cached"] == [0] + [shared] * (n - 1), where
        assert len(answer["tokens"]) == n, where
    texts = [{tuple(tokens) for tokens in answer["tokens"]} for answer in answers]
    assert sum(len(each) > 1 for each in texts) > len(texts) // 2, "children say the same"


def test_children_have_seeds_of_their_own_and_share_a_prompt() -> None:
    asked = requests(either(10, 40))
    check(asked, play("mini_vllm", asked))


def test_a_child_is_the_request_with_its_seed() -> None:
    """So child 1 of seed 7 is the same as a request with seed 8."""
    whole = {**requests(6)[5], "n": 4}
    singles = [whole | {"n": 1, "seed": whole["seed"] + i} for i in range(4)]
    (together,) = play("mini_vllm", [whole])
    alone = play("mini_vllm", singles)
    assert together["tokens"] == [answer["tokens"][0] for answer in alone]


@pytest.mark.vllm
def test_children_are_vllms() -> None:
    """Tokens, seeds and cached tokens of each child, and the request's own count."""
    from course.parity.tokens_run import run_worker

    asked = requests(either(16, 40))
    real = run_worker("tests.engine.helpers.sampling.parallel_samples", ["vllm"], asked)
    check(asked, real)
    assert play("mini_vllm", asked) == real
