"""Deltas of several tokens each."""

from __future__ import annotations

import pytest

from mini_vllm import EngineArgs, EngineConfig, LLMEngine, RequestOutputKind, SamplingParams
from tests.engine.helpers.engine.engine_helpers import random_model


def counts(interval: int, kind: RequestOutputKind, max_tokens: int = 12) -> list[int]:
    """Tokens in each output of a request, with as many logprobs."""
    engine = LLMEngine(random_model(), EngineConfig(stream_interval=interval))
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=kind, logprobs=1
    )
    outputs = list(engine.stream([7] * 5, params))
    assert all(len(o.outputs[0].token_ids) == len(o.outputs[0].logprobs or ()) for o in outputs)
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    return [len(o.outputs[0].token_ids) for o in outputs]


def test_the_first_token_comes_at_once_then_so_many_together_and_last_the_rest() -> None:
    assert counts(1, RequestOutputKind.DELTA) == [1] * 12
    assert counts(5, RequestOutputKind.DELTA) == [1, 5, 5, 1]
    assert counts(50, RequestOutputKind.DELTA) == [1, 11]


def test_the_other_kinds_do_not_wait() -> None:
    assert counts(5, RequestOutputKind.CUMULATIVE, 6) == [1, 2, 3, 4, 5, 6]
    assert counts(5, RequestOutputKind.FINAL_ONLY, 6) == [6]


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="stream_interval must be an integer of at least 1, got 0"):
        EngineConfig(stream_interval=0)


def test_a_small_budget_lowers_the_default_of_max_num_seqs() -> None:
    assert EngineArgs(max_num_batched_tokens=32).create_engine_config().max_num_seqs == 32
    assert EngineArgs(max_num_batched_tokens=512).create_engine_config().max_num_seqs == 256
    with pytest.raises(ValueError, match="max_num_seqs"):
        EngineArgs(max_num_batched_tokens=32, max_num_seqs=33).create_engine_config()
