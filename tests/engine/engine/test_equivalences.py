"""Chunks, cache, preemption, company and block size change no token of the engine's."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.engine.parts import EngineParts
from tests.engine.helpers.engine.detectors import DETECTORS, GOLDEN, poison, watch
from tests.engine.helpers.engine.workloads import (
    Job,
    compare,
    drive,
    greedy,
    make_engine,
    prompts,
    random_workload,
)
from tests.engine.helpers.thorough import either

PARTS = EngineParts()


@pytest.mark.parametrize("name", DETECTORS)
def test_the_real_parts_pass(name: str) -> None:
    if name == "golden_traces":
        assert any(GOLDEN.glob("scheduler-*.jsonl*")), "tests/golden holds no recorded traces"
    DETECTORS[name](PARTS)


def test_the_yardstick_is_sensitive_to_every_token_of_the_context() -> None:
    """Were it not, equal tokens would prove nothing: change any one prompt token, others follow."""
    (prompt,) = prompts(7, 24)
    right = greedy(prompt, 8)
    for position in range(len(prompt)):
        other = list(prompt)
        other[position] = 3 + (other[position] - 2) % 61
        assert other != prompt
        assert greedy(other, 8) != right, f"token {position} does not matter to this model"


@pytest.mark.parametrize("seed", range(100, either(103, 140)))
def test_random_arrivals_aborts_and_preemptions_change_no_token(seed: int) -> None:
    jobs, settings = random_workload(seed)
    engine = make_engine(PARTS, **settings)
    watch(engine)
    compare(f"seed {seed}", engine, jobs, drive(engine, jobs)[0])


def test_poison_reaches_every_slot_that_nobody_may_read() -> None:
    """The canaries sit where they should: with one request of 5 tokens, in all but its 5 slots."""
    engine = make_engine(PARTS, num_gpu_blocks=65, enable_prefix_caching=False)
    fill = poison(engine)
    seen: list[int] = []
    runner = engine.engine_core.model_runner
    execute = runner.execute_model

    def poisoned(output: object) -> object:
        fill(output)
        seen.append(int((~np.isnan(runner.kv_caches[0])).sum()))
        return execute(output)  # type: ignore[arg-type]

    runner.execute_model = poisoned  # type: ignore[assignment, method-assign]
    (prompt,) = prompts(8, 5)
    drive(engine, [Job(prompt, 3)])
    per_slot = runner.kv_caches[0].size // (65 * 4)
    assert seen == [0, 5 * per_slot, 6 * per_slot]
