"""The suite catches planted bugs: each fault of `faults.py` makes the detectors named here fail.

The expected text is what someone debugging would read first; it must point at the mistake or at a
wrong token. The other way round is `test_equivalences.py`: the engine as it is passes them all.
"""

from __future__ import annotations

import re

import pytest

from mini_vllm.engine.parts import EngineParts
from tests.engine.helpers.engine.detectors import DETECTORS
from tests.engine.helpers.engine.faults import FAULTS
from tests.engine.helpers.engine.workloads import drive, make_engine, random_workload

WRONG = "wrong tokens"
RAISES = r"\b1 .*blocks.* 0 are free"

# fault -> detector -> what its message says (a regular expression)
CAUGHT_BY: dict[str, dict[str, str]] = {
    "slot_off_by_one_at_block_boundary": {
        "alone": WRONG,
        "batched_equals_alone": WRONG,
        "canaries": WRONG,
    },
    "slot_from_the_first_block": {"alone": WRONG, "any_block_size": "block size 1: wrong"},
    "positions_restart_in_every_chunk": {
        "chunked_equals_unchunked": "^chunked: wrong",
        "cached_equals_uncached": "^cached: wrong",
    },
    "stale_table_after_preemption": {"preempted_equals_not": WRONG, "canaries": WRONG},
    "sequence_one_token_short": {"alone": WRONG},
    "sequence_one_token_long": {"alone": WRONG, "canaries": r"got \[0, "},
    "causal_mask_without_the_chunks_offset": {
        "chunked_equals_unchunked": "^chunked: wrong",
        "cached_equals_uncached": "^cached: wrong",
    },
    "touch_leaves_the_block_in_the_free_queue": {
        "invariants_hold": "I1 fails",
        "recorded_decisions": "I1: a block of the free queue is referenced",
    },
    "hit_does_not_count_a_reference": {
        "invariants_hold": "ref_cnt=1.* is held by 2 tables",
        "recorded_decisions": "three duplicates, references: got 1, vLLM decides 3",
    },
    "eviction_leaves_the_hash_index": {
        "evicted_is_forgotten": WRONG,
        "preempted_equals_not": "caching True.*wrong tokens",
        "invariants_hold": "I4: the hash index and the blocks disagree",
    },
    "newest_free_block_first": {
        "cached_equals_uncached": "tokens found in the cache",
        "recorded_decisions": "b takes the unused block",
        "golden_traces": "golden trace",
    },
    "hash_without_the_parent": {"cached_equals_uncached": "Request 9 .*differs at output 0"},
    "hash_without_the_salt": {
        "cached_equals_uncached": r"found in the cache are .*12\], should be .*0\]",
        "recorded_decisions": "salts: got",
    },
    "freed_head_first": {
        "recorded_decisions": "then a's tail: got {'b': .4, 1.}",
        "golden_traces": "golden trace",
    },
    "freed_twice": {"preempted_equals_not": "I1", "invariants_hold": "I1"},
    "last_token_from_the_cache": {
        "cached_equals_uncached": "num_new_tokens must be greater than 0, got 0",
        "golden_traces": "golden trace",
    },
    "prefix_hit_one_block_too_long": {
        "cached_and_chunked": WRONG,
        "any_block_size": WRONG,
        "invariants_hold": WRONG,
    },
    "shared_tail_block": {
        "cached_equals_uncached": "^cached: wrong tokens. Request 2",
        "invariants_hold": "I3: shared but not full",
    },
    "published_before_it_is_full": {
        "cached_and_chunked": WRONG,
        "canaries": WRONG,
        "invariants_hold": "I12: .* has 0 full blocks, 1 published",
    },
    "free_hits_not_counted": {"preempted_equals_not": RAISES, "recorded_decisions": RAISES},
    "counter_survives_preemption": {
        "invariants_hold": "I8: computed while it waits",
        "golden_traces": "golden trace",
    },
    "preemption_keeps_the_blocks": {
        "preempted_equals_not": "the engine hangs",
        "invariants_hold": "leak: .* is held by 0 tables",
        "recorded_decisions": "what b gave back: got 0, vLLM decides 2",
    },
    "abort_forgets_to_free": {"invariants_hold": "I11: blocks are held by a request"},
}


def test_every_fault_is_expected_somewhere() -> None:
    assert list(CAUGHT_BY) == list(FAULTS)
    assert len(FAULTS) >= 12
    assert all(fault.__doc__ for fault in FAULTS.values()), "each names its mistake"


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken mask divides nothing by nothing
def test_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    parts = fault(monkeypatch)
    for detector, message in CAUGHT_BY[name].items():
        # Besides AssertionError: what the engine itself raises when a rule of its own is broken.
        try:
            DETECTORS[detector](parts)
        except (AssertionError, ValueError) as error:
            text = str(error)
        else:
            pytest.fail(f"{detector} saw nothing. Planted: {fault.__doc__}")
        assert re.search(message, text), f"{detector} failed, but not over {message!r}: {text}"


def test_the_random_workloads_are_not_idle() -> None:
    """What the seeds of `test_equivalences.py` make happen: without it they would show little."""
    preemptions = aborted = hits = steps = 0
    for seed in range(100, 120):
        jobs, settings = random_workload(seed)
        engine = make_engine(EngineParts(), **settings)
        tokens, cached = drive(engine, jobs)
        preemptions += engine.engine_core.scheduler.num_preemptions
        aborted += sum(
            job.abort is not None and len(t) < len(job.expected)
            for job, t in zip(jobs, tokens, strict=True)
        )
        hits += sum(count or 0 for count in cached)
        steps += engine.engine_core.num_steps
    assert preemptions > 70, preemptions
    assert aborted > 25, aborted
    assert hits > 400, hits
    assert steps > 750, steps
