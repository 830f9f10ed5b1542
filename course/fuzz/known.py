"""Worlds that go wrong at the pin; two are told again in `tests/engine/parity/test_on_purpose.py`."""

from __future__ import annotations

from dataclasses import replace

from course.fuzz.world import Job, Settings, Speculation, World


def _words(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


WITHDRAWN = World(
    Settings(
        block_size=2,
        num_blocks=9,
        max_model_len=32,
        long_prefill_token_threshold=4,
        policy="priority",
    ),
    (
        Job(_words(10, 12), max_tokens=4, priority=5),
        Job(_words(30, 4), max_tokens=2, arrive=1),
    ),
    name="withdrawn",
)
"""8 blocks; a prompt of 12 in chunks of 4 and, in the step of its last chunk, one of 4 that needs a block."""

BYSTANDER = replace(
    WITHDRAWN, jobs=(*WITHDRAWN.jobs, Job((50,), max_tokens=4, salt=1)), name="bystander"
).with_settings(num_blocks=11)
"""The same beside somebody who asks for little, and two blocks more for him.

From 0.31 on a request that is alone is given its whole prompt at once, whatever the threshold; beside
another it is cut as before.
"""

EQUALS = World(
    Settings(
        block_size=1,
        num_blocks=10,
        max_model_len=32,
        max_num_seqs=2,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=1,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
        policy="priority",
    ),
    (Job(_words(5, 6), max_tokens=4, n=2),),
    name="equals",
)
"""Two siblings that need 9 slots each, in a pool of 9."""

DOUBLED = World(
    Settings(block_size=16, num_blocks=10),
    (Job(_words(10, 3), max_tokens=12),),
    mode="async",
    resets=((3, True), (4, True)),
    in_flight=3,
    name="doubled",
)
"""One request, three plans in flight as with three pipeline stages, and two forced resets in a row."""

DEADLY = replace(DOUBLED, jobs=(Job(_words(10, 12), max_tokens=12),), name="deadly").with_settings(
    max_num_batched_tokens=8
)
"""The same with a prompt that comes back in chunks, which leave no placeholder for a token."""

SYNC = (WITHDRAWN, BYSTANDER, EQUALS)
KNOWN = (*SYNC, *(replace(world, mode="async") for world in SYNC), DOUBLED, DEADLY)

LOST = World(
    Settings(block_size=16, num_blocks=10),
    (Job(_words(10, 3), max_tokens=12),),
    mode="async",
    resets=((3, True),),
    speculation=Speculation("eagle", k=3, acceptance=100),
    name="lost",
)
"""One request, two plans in flight, drafts that are always right, and one forced reset."""

TAKEN_BACK = replace(LOST, speculation=Speculation("eagle", k=3, acceptance=0), name="taken back")
"""The same with drafts that are always wrong."""

KNOWN_WITH_DRAFTS = (LOST, TAKEN_BACK)
