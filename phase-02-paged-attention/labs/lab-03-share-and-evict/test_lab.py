"""Lab 02-03: look-ups, grants and returns, call by call."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams

support = load_support(__file__)
SIZE = 4


def make(
    lab: ModuleType, num_blocks: int = 10, max_model_len: int = 64, caching: bool = True
) -> Any:
    return lab.KVCacheManager(num_blocks, SIZE, max_model_len, caching)


def ask(name: str, prompt: Iterable[int], **more: Any) -> Request:
    params = SamplingParams(**({"max_tokens": 16} | more))
    return Request(name, list(prompt), params, block_size=SIZE)


def admit(manager: Any, request: Request, num_tokens: int | None = None, gate: bool = False) -> Any:
    """What the scheduler does for a waiting request: look up, then ask for the rest."""
    hits, num_hits = manager.get_computed_blocks(request)
    new = request.num_tokens - num_hits if num_tokens is None else num_tokens
    got = support.grant(manager, request, new, num_hits, hits, gate)
    if got is not None:
        request.num_computed_tokens = num_hits + new
    return got


def free_ids(manager: Any) -> list[int]:
    return [block.block_id for block in manager.block_pool.free_block_queue]


def state(manager: Any) -> dict[str, object]:
    blocks = manager.block_pool.blocks
    return {
        "req_to_blocks": {
            name: [block.block_id for block in table]
            for name, table in manager.req_to_blocks.items()
        },
        "num_cached_block": dict(manager.num_cached_block),
        "the free queue": free_ids(manager),
        "who is referenced how often": {b.block_id: b.ref_cnt for b in blocks if b.ref_cnt},
        "what is published": [b.block_id for b in blocks if b.block_hash],
    }


def changed(before: dict[str, object], manager: Any) -> str:
    """What is not as it was, in words; "" if all is."""
    now = state(manager)
    return "; ".join(
        f"{name} was {before[name]} and is {now[name]}" for name in now if now[name] != before[name]
    )


# ---- looking up ----------------------------------------------------------------------------------


def test_found_are_whole_blocks_up_to_the_first_miss(lab: ModuleType) -> None:
    """A look-up finds whole blocks up to the first miss; what comes after a miss is of no use."""
    manager = make(lab)
    ada = ask("ada", range(14))
    admit(manager, ada)
    hits, tokens = manager.get_computed_blocks(ask("bo", [*range(8), 70, 71, 72]))
    assert (hits.get_block_ids()[0], tokens) == ([1, 2], 8), (
        f"bo has ada's first eight tokens: blocks 1 and 2, 8 tokens; yours found "
        f"{hits.get_block_ids()[0]}, {tokens}"
    )
    manager.evict_blocks({2})
    hits, tokens = manager.get_computed_blocks(ask("cy", range(14)))
    assert (hits.get_block_ids()[0], tokens) == ([1], 4), (
        "block 2 is forgotten and block 3 is not: the hits end at the first miss, at 4 tokens; yours "
        f"found {hits.get_block_ids()[0]}, {tokens}"
    )


def test_a_resumed_request_finds_its_answer_too(lab: ModuleType) -> None:
    """A request preempted after 6 prompt and 3 output tokens finds both of its full blocks again."""
    manager = make(lab)
    ada = ask("ada", range(6))
    admit(manager, ada)
    for token in (50, 51, 52):
        ada.append_output_token_ids(token)
        support.grant(manager, ada, 1)
        ada.num_computed_tokens += 1
    manager.free(ada)
    ada.num_computed_tokens = 0
    _, tokens = manager.get_computed_blocks(ada)
    assert tokens == 8, (
        f"ada has 9 tokens, prompt and answer, and 8 of them fill two blocks; yours finds {tokens}. "
        "num_tokens counts both"
    )


def test_one_token_is_always_left_to_run(lab: ModuleType) -> None:
    """The last token must run for its logits, so a block that ends with the prompt is no hit."""
    manager = make(lab)
    admit(manager, ask("ada", range(12)))
    for n, wanted in ((12, 8), (13, 12), (8, 4), (9, 8), (4, 0)):
        _, tokens = manager.get_computed_blocks(ask("bo", [*range(12), 50][:n]))
        assert tokens == wanted, (
            f"a prompt of {n} tokens, all cached: at most {n - 1} may be skipped, in whole blocks of 4, "
            f"so {wanted}; yours skips {tokens}"
        )


def test_looking_takes_nothing(lab: ModuleType) -> None:
    """A look-up changes nothing, because the scheduler may give up after it."""
    manager = make(lab)
    ada = ask("ada", range(12))
    admit(manager, ada)
    manager.free(ada)
    before = state(manager)
    manager.get_computed_blocks(ask("bo", range(12)))
    left = changed(before, manager)
    assert not left, f"get_computed_blocks only looks, and yours changed something: {left}"


def test_who_does_not_look_finds_nothing(lab: ModuleType) -> None:
    """Nothing is found with caching off, or for a request that needs logits of its prompt."""
    off = make(lab, caching=False)
    ada = ask("ada", range(12))
    admit(off, ada)
    assert off.get_computed_blocks(ask("bo", range(12)))[1] == 0, (
        "caching is off, and something was found"
    )
    assert not [b for b in off.block_pool.blocks if b.block_hash], (
        "caching is off, and blocks were published"
    )
    manager = make(lab)
    admit(manager, ask("ada", range(12)))
    assert manager.get_computed_blocks(ask("bo", range(12), prompt_logprobs=1))[1] == 0, (
        "prompt_logprobs wants logits at every token of the prompt: skip_reading_prefix_cache says so"
    )


# ---- granting ------------------------------------------------------------------------------------


def test_as_many_blocks_as_the_tokens_need(lab: ModuleType) -> None:
    """Ten tokens take three blocks of four; two more tokens fit, and the next one needs a fourth."""
    manager = make(lab)
    ada = ask("ada", range(10))
    for new, wanted in ((10, [1, 2, 3]), (1, []), (1, []), (1, [4]), (3, [])):
        got = support.grant(manager, ada, new).get_block_ids()[0]
        assert got == wanted, (
            f"{ada.num_computed_tokens} tokens computed, {new} more: blocks {wanted} are new, "
            f"yours took {got}"
        )
        ada.num_computed_tokens += new
    assert manager.get_block_ids("ada")[0] == [1, 2, 3, 4], "I2: the table grows at its end"


def test_no_slot_beyond_max_model_len(lab: ModuleType) -> None:
    """No slot is granted beyond max_model_len, even if tokens are scheduled beyond it."""
    manager = make(lab, max_model_len=8)
    ada = ask("ada", range(7))
    admit(manager, ada)
    got = support.grant(manager, ada, 3)
    assert got is not None, "8 tokens fit into the two blocks that ada has: nothing may be refused"
    assert manager.get_block_ids("ada")[0] == [1, 2], (
        f"max_model_len is 8, two blocks, yours holds {manager.get_block_ids('ada')[0]}"
    )


def test_what_does_not_fit_changes_nothing(lab: ModuleType) -> None:
    """A request that does not fit gets None, and nothing changes: the scheduler may ask again."""
    manager = make(lab, num_blocks=5)
    ada = ask("ada", range(8))
    admit(manager, ada)
    before = state(manager)
    assert admit(manager, ask("cy", range(60, 71))) is None, "3 blocks wanted, 2 free: None"
    left = changed(before, manager)
    assert not left, f"a refused grant left something behind: {left}"
    assert admit(manager, ask("cy", range(60, 68))) is not None, (
        "2 blocks wanted, 2 free: that fits"
    )


def test_a_found_block_that_is_free_counts(lab: ModuleType) -> None:
    """A found block that is free leaves the free queue, too: 2 found and 2 new do not fit in 3 free."""
    manager = make(lab, num_blocks=4)
    ada = ask("ada", range(9))
    admit(manager, ada)
    manager.free(ada)
    before = state(manager)
    bo = ask("bo", [*range(8), 70, 71, 72, 73, 74])
    assert manager.get_computed_blocks(bo)[1] == 8, "blocks 1 and 2 can be found"
    try:
        got = admit(manager, bo)
    except ValueError as error:
        raise AssertionError(
            f"the pool refused ({error}): the two blocks found are free, and leave the queue before new "
            "ones are taken. Count them among the needed"
        ) from None
    assert got is None, (
        "13 tokens are 4 blocks, 2 of them found and free, and 3 are free in all: that does not fit. Yours "
        f"took {got.get_block_ids()[0]}"
    )
    left = changed(before, manager)
    assert not left, f"a refused grant left something behind: {left}"


def test_a_found_block_in_use_costs_nothing(lab: ModuleType) -> None:
    """A found block in use costs nothing: Bo shares two that Ada holds, so one free block is enough."""
    manager = make(lab, num_blocks=5)
    admit(manager, ask("ada", range(10)))
    got = admit(manager, ask("bo", [*range(8), 70]), gate=True)
    assert got is not None, (
        "bo's 9 tokens are three blocks, of which two are ada's, found and in use: one is needed and one is "
        "free, so it fits. Yours returned None"
    )
    assert got.get_block_ids()[0] == [4], (
        "9 tokens are 3 blocks, 2 were found, so one is new, block 4, and only it is returned; yours "
        f"returned {got.get_block_ids()[0]}"
    )
    assert manager.get_block_ids("bo")[0] == [1, 2, 4], (
        f"bo's table begins with ada's blocks, yours is {manager.get_block_ids('bo')[0]}"
    )
    counts = [manager.block_pool.blocks[i].ref_cnt for i in (1, 2, 3, 4)]
    assert counts == [2, 2, 1, 1], (
        f"two hold blocks 1 and 2, so blocks 1 to 4 count [2, 2, 1, 1] references; yours {counts}"
    )


def test_found_blocks_are_held_before_new_ones_are_taken(lab: ModuleType) -> None:
    """Found blocks are held before new ones are taken, because they may be next in the free queue."""
    manager = make(lab, num_blocks=5)
    ada = ask("ada", range(9))
    admit(manager, ada)
    admit(manager, ask("cy", range(60, 64)))
    manager.free(ada)
    bo = ask("bo", [*range(4), 70, 71, 72, 73])
    hits, tokens = manager.get_computed_blocks(bo)
    assert (hits.get_block_ids()[0], tokens) == ([1], 4), "block 1 can be found"
    support.grant(manager, bo, 4, tokens, hits)
    assert manager.get_block_ids("bo")[0] == [1, 3], (
        f"bo found block 1, and his new block is the front of what is left, 3; yours is "
        f"{manager.get_block_ids('bo')[0]}"
    )
    tight = make(lab, num_blocks=3)
    support.grant(tight, first := ask("first", range(5)), 5)
    tight.free(first)
    pool = tight.block_pool
    pool.free_blocks(pool.get_new_blocks(1))  # block 2, so that block 1 is at the front
    second = ask("second", range(5))
    hits, tokens = tight.get_computed_blocks(second)
    assert tokens == 4, "block 1 can be found"
    support.grant(tight, second, 1, tokens, hits)
    assert tight.get_block_ids("second")[0] == [1, 2], (
        "the block found stood at the front of the queue, and the new block was taken first: it was "
        f"evicted and given away as new. Touch before you take; yours is {tight.get_block_ids('second')[0]}"
    )


def test_the_gate_asks_for_the_whole_sequence(lab: ModuleType) -> None:
    """The gate refuses a request whose chunk of 4 tokens fits, but whose 16 tokens do not."""
    manager = make(lab, num_blocks=4)
    cy = ask("cy", range(60, 76))
    assert admit(manager, cy, num_tokens=4, gate=True) is None, (
        "full_sequence_must_fit: 16 tokens are 4 blocks and 3 are free, whatever this step computes"
    )
    assert admit(manager, cy, num_tokens=4) is not None, (
        "without the gate the chunk alone is asked for"
    )
    resumed = ask("resumed", range(30, 38))
    for token in range(5):
        resumed.append_output_token_ids(50 + token)
    assert admit(make(lab, num_blocks=4), resumed, num_tokens=4, gate=True) is None, (
        "8 tokens of prompt and 5 of answer are 4 blocks, and 3 are free: num_tokens counts both"
    )
    tight = make(lab, num_blocks=4)
    first = ask("first", range(9))
    admit(tight, first)
    tight.free(first)
    assert (
        admit(tight, ask("second", [*range(8), *range(70, 77)]), num_tokens=2, gate=True) is None
    ), (
        "15 tokens are 4 blocks: 2 are found, free, and leave the queue with the 2 new ones, 4 of 3. The "
        "gate must count found blocks that are free, too"
    )


# ---- publishing and returning --------------------------------------------------------------------


def test_full_blocks_can_be_found_as_soon_as_they_are_granted(lab: ModuleType) -> None:
    """Full blocks can be found before they are computed, so a request in the same step may share (I5)."""
    manager = make(lab)
    admit(manager, ask("ada", range(10)))
    _, tokens = manager.get_computed_blocks(ask("bo", range(10)))
    assert tokens == 8, (
        "ada's ten tokens fill two blocks: they are published in allocate_slots, so bo finds 8 tokens; "
        f"yours finds {tokens}"
    )
    assert [b.block_id for b in manager.block_pool.blocks if b.block_hash] == [1, 2], (
        "block 3 holds two tokens of four and must not be published (I3)"
    )
    chunked = make(lab)
    admit(chunked, ask("cy", range(60, 72)), num_tokens=6)
    assert [b.block_id for b in chunked.block_pool.blocks if b.block_hash] == [1], (
        "a chunk of 6 tokens fills one block of 4 and half of the next: publish what the granted tokens "
        "fill, whatever the prompt still holds"
    )


def test_a_block_is_published_by_tokens_that_exist(lab: ModuleType) -> None:
    """A block with slots for tokens that are not sampled yet has no contents to hash."""
    manager = make(lab)
    ada = ask("ada", range(7))
    support.grant(manager, ada, 7)
    ada.num_computed_tokens = 7
    support.grant(manager, ada, 1)  # the slot of a token to come
    assert [b.block_id for b in manager.block_pool.blocks if b.block_hash] == [1], (
        "ada has 7 tokens, so one full block, although 8 slots are granted: num_tokens bounds it"
    )
    ada.append_output_token_ids(50)
    ada.num_computed_tokens = 8
    support.grant(manager, ada, 1)
    assert [b.block_id for b in manager.block_pool.blocks if b.block_hash] == [1, 2], (
        "now the eighth token is there: block 2 is published, once"
    )


def test_how_many_are_published_is_kept(lab: ModuleType) -> None:
    """num_cached_block counts blocks found and blocks published, and no block is published twice."""
    manager = make(lab)
    ada = ask("ada", range(10))

    def kept(name: str) -> int | None:
        number: int | None = manager.num_cached_block.get(name)
        return number

    admit(manager, ada, num_tokens=6)
    assert kept("ada") == 1, (
        "6 of ada's 10 tokens are granted and fill one block of 4: num_cached_block says 1, yours "
        f"{kept('ada')}"
    )
    support.grant(manager, ada, 4)
    ada.num_computed_tokens = 10
    assert kept("ada") == 2, (
        "4 more tokens fill a second block, and the third has 2 of 4: num_cached_block says 2, yours "
        f"{kept('ada')}"
    )
    for name, prompt, wanted, why in (
        ("bo", [*range(8), 70, 71, 72, 73, 74], 3, "2 found, and the 5 new tokens fill one more"),
        ("cy", [*range(8), 80], 2, "2 found, and the new token fills none"),
        ("eve", range(90, 93), 0, "nothing found, and 3 tokens fill no block of 4"),
    ):
        admit(manager, ask(name, prompt))
        assert kept(name) == wanted, (
            f"{name}: {why}, so {wanted} blocks at the front of the table are published; yours says "
            f"{kept(name)}"
        )
    published = [block.block_id for block in manager.block_pool.blocks if block.block_hash]
    indexed = [block.block_id for _, block in manager.block_pool.cached_block_hash_to_block.items()]
    assert sorted(indexed) == published == [1, 2, 4], (
        f"published are ada's blocks 1 and 2, which bo and cy share, and bo's block 4, each once; in yours "
        f"{published} have a hash and the index holds {sorted(indexed)}"
    )
    manager.free(ada)
    assert kept("ada") is None, (
        f"ada has left and holds no block: free forgets her number; yours keeps {kept('ada')}"
    )
    assert kept("bo") == 3, f"bo's number is his own: 3, yours {kept('bo')}"


def test_the_tail_is_given_back_first(lab: ModuleType) -> None:
    """The tail is evicted first, so the beginning of a prompt is left, which others may share."""
    manager = make(lab, num_blocks=6)
    ada = ask("ada", range(10))
    admit(manager, ada)
    manager.free(ada)
    assert free_ids(manager) == [4, 5, 3, 2, 1], (
        f"4 and 5 were free before; then ada's table from its end, 3 2 1; yours: {free_ids(manager)}"
    )
    assert manager.get_block_ids("ada")[0] == [], "ada holds nothing any more"
    manager.free(ada)
    assert free_ids(manager) == [4, 5, 3, 2, 1], "who holds nothing gives nothing back"
    manager.check_invariants()


def test_who_comes_back_starts_anew(lab: ModuleType) -> None:
    """A preempted request has lost its table, and the blocks that it published may be gone."""
    manager = make(lab)
    ada = ask("ada", range(10))
    admit(manager, ada)
    manager.free(ada)
    manager.reset_prefix_cache()
    ada.num_computed_tokens = 0
    admit(manager, ada)
    assert len([b for b in manager.block_pool.blocks if b.block_hash]) == 2, (
        "ada's second table has two full blocks, and they are not published: free must forget how many "
        "were, too"
    )


def test_your_predictions(lab: ModuleType) -> None:
    """Your predictions are right: Ada and Bo share, Eve looks, both leave, Cy comes, Ada comes again."""
    happened = support.what_happens(KVCacheManager)
    predicted = lab.predictions()
    for name, value in happened.items():
        assert name in predicted, f"predictions() has no answer under {name!r}"
        wrong = wrong_in(predicted[name], value)
        assert not wrong, (
            f"{name}: {wrong}. Play it on paper: tables, counts, and the free queue from front to back"
        )


def test_it_happens_on_your_manager(lab: ModuleType) -> None:
    """The same scene has the same result on your manager."""
    happened, yours = support.what_happens(KVCacheManager), support.what_happens(lab.KVCacheManager)
    for name, value in happened.items():
        assert yours[name] == value, (
            f"{name}: {value} on mini_vllm's manager, {yours[name]} on yours"
        )
