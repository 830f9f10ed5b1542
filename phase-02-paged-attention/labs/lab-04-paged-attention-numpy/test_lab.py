"""Lab 02-04: from a token to its slot and back: write map, read map, attention."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
ADA, BO = [7, 2, 5], [7, 2, 9]


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions of slots, reads and running denominators are right."""
    said = lab.predictions()
    facts = {
        "slots of Ada's prompt": (
            [28, 29, 30, 31, 8, 9, 10, 11, 20, 21],
            "At which slot does each block of her table begin?",
        ),
        "slots of the decode step": (
            [22, 39],
            "Counted from 0, which position is her 11th token, and which his 12th? In which block is each?",
        ),
        "rows read, and of these read twice": (
            [23, 8],
            "How many tokens does each see by now? A shared slot is read by both: how many of its readings "
            "are second ones?",
        ),
        "denominator after each piece": (
            [1.5, 1.75],
            "When the maximum grows, by which factor is every earlier term too large?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- where a token goes --------------------------------------------------------------------------


def test_slot_of_a_token(lab: ModuleType) -> None:
    """A token's slot is its block's id times the block size, plus the offset in the block."""
    for table, position, block_size, slot in (
        (ADA, 0, 4, 28), (ADA, 3, 4, 31), (ADA, 4, 4, 8), (ADA, 9, 4, 21), (BO, 11, 4, 39),
        ([3], 15, 16, 63), ([3, 1], 16, 16, 16), ([6, 4, 2], 2, 1, 2),
    ):  # fmt: skip
        got = lab.slot_of(table, position, block_size)
        assert got == slot, (
            f"table {table}, blocks of {block_size}: position {position} lies in entry "
            f"{position // block_size} of the table at offset {position % block_size}, slot {slot}, not {got}"
        )


def flat(*values: list[int]) -> list[np.ndarray]:
    return [np.array(value, np.int32) for value in values]


def test_slot_mapping_of_a_flat_batch(lab: ModuleType) -> None:
    """One array has the slots of a decode, of a later chunk and of a new prompt, request after request."""
    table, start, lens = flat([[7, 2, 5], [7, 2, 9], [3, 8, 0]], [0, 1, 5, 10], [11, 10, 5])
    want = [22, 10, 11, 36, 37, 12, 13, 14, 15, 32]
    got = lab.slot_mapping(table, start, lens, 4)
    assert list(got) == want, (
        f"Ada writes position 10, Bo 6 to 9, Cy 0 to 4: slots {want}. Yours: {np.asarray(got).tolist()}. "
        "`slot_mapping` is given, and asks your `slot_of` for each"
    )
    assert got.dtype == np.int64, (
        f"slots are int64, a large cache has more than 2**31; yours {got.dtype}"
    )


def test_padding_has_no_slot(lab: ModuleType) -> None:
    """Rows past the last token get PAD_SLOT_ID; a batch that is long enough gets no padding."""
    table, start, lens = flat([[7, 2, 5], [7, 2, 9]], [0, 1, 2], [11, 12])
    got = lab.slot_mapping(table, start, lens, 4, padded_to=4)
    assert list(got) == [22, 39, -1, -1], (
        f"two tokens, padded to 4 rows: [22, 39, -1, -1], not {np.asarray(got).tolist()}"
    )
    got = lab.slot_mapping(table, start, lens, 4, padded_to=1)
    assert list(got) == [22, 39], (
        f"two tokens are more than padded_to=1: [22, 39], not {np.asarray(got).tolist()}"
    )


@pytest.mark.parametrize("layout", ["apart", "between", "heads first"])
def test_write_kv_scatters(lab: ModuleType, layout: str) -> None:
    """Each row goes to its slot, whatever the cache's layout in memory, and nothing else is touched."""
    rng = np.random.default_rng(0)
    key, value = rng.normal(size=(2, 4, 2, 5))
    caches = support.empty_caches((10, 4, 2, 5), layout)
    slots = np.array([22, 39, 8, 0])
    lab.write_kv(key, value, *caches, slots)
    for name, cache, rows, others in (("K", caches[0], key, value), ("V", caches[1], value, key)):
        for row, slot in enumerate(slots.tolist()):
            found = cache[slot // 4, slot % 4]
            if np.array_equal(found, others[row]):
                why = "which is V's row: K goes to `key_cache`, V to `value_cache`, each its own"
                why = why if name == "K" else why.replace("V's row", "K's row")
            elif not np.isnan(found).all():
                why = "which is another row's"
            elif layout == "apart":
                why = "so nobody has written there"
            else:
                why = (
                    "so nobody has written there. The cache is a view of something larger: a reshape may "
                    "have to copy it, and what is written to a copy is lost"
                )
            assert np.array_equal(found, rows[row]), (
                f"{layout}: {name} of row {row} goes to slot {slot}, block {slot // 4}, offset {slot % 4}; "
                f"there lies {found[0].round(2).tolist()}, {why}"
            )
        touched = int((~np.isnan(cache)).any(axis=(2, 3)).sum())
        assert touched == 4, f"{layout}: 4 tokens write 4 slots of {name}, yours wrote {touched}"


def test_padding_is_not_written(lab: ModuleType) -> None:
    """A padding row is not written; numpy would take its slot, -1, for the last slot of the last block."""
    key = value = np.arange(4.0)[:, None, None].repeat(2, 1).repeat(5, 2)
    for slots in ([22, 8, -1, -1], [22, -1, 8, -1], [22, 8, -1, -2]):
        caches = support.empty_caches((10, 4, 2, 5), "apart")
        given = np.array(slots)
        lab.write_kv(key, value, *caches, given)
        for name, cache in zip("KV", caches, strict=True):
            written = [int(slot) for slot in np.flatnonzero(~np.isnan(cache[..., 0, 0]))]
            assert written == [8, 22], (
                f"slots {slots}: negative ones are padding, so slots 8 and 22 are written, yours wrote "
                f"{name} to {written}. numpy counts -1 from the end: here that is slot 39, and anybody's"
            )
            row = slots.index(8)
            assert cache[2, 0, 0, 0] == row, (
                f"slots {slots}: slot 8 is for row {row} of {name}, yours put row {cache[2, 0, 0, 0]:.0f} "
                "there. Rows and slots are left out together"
            )
        assert given.tolist() == slots, (
            f"the next layer writes with the same slots, {slots}; you left {given.tolist()}"
        )


# ---- and how it is found -------------------------------------------------------------------------


def test_gather_follows_the_table(lab: ModuleType) -> None:
    """gather returns the rows of a request in the order of its tokens, and not one more."""
    cache = np.arange(40.0).reshape(10, 4, 1, 1)
    for table, seq_len, want in (
        (ADA, 10, [28, 29, 30, 31, 8, 9, 10, 11, 20, 21]),
        (ADA, 8, [28, 29, 30, 31, 8, 9, 10, 11]),
        ([9, 0, 0], 1, [36]),
    ):
        got = lab.gather(cache, np.array(table, np.int32), seq_len)
        assert got.shape == (seq_len, 1, 1), (
            f"table {table}, {seq_len} tokens: the shape is {(seq_len, 1, 1)}, not {got.shape}. The last "
            "block may be partly filled, and the table longer than the request"
        )
        assert got.ravel().tolist() == want, (
            f"table {table}, {seq_len} tokens: slots {want}, yours {got.ravel().astype(int).tolist()}"
        )
    try:
        lab.gather(cache, np.array([7, 2, 999], np.int32), 8)
    except IndexError:
        pytest.fail(
            "8 tokens have 2 blocks, and yours looked up the third entry of the table, which names block 999 "
            "of 10. What stands past a request's last block is left over from others"
        )


CASES = {
    "one token": ([1], {}),
    "one block, full": ([4], {}),
    "a tail of one": ([5], {}),
    "ragged": ([1, 4, 5, 11, 30], {}),
    "no grouping": ([7, 10], {"group": 1}),
    "one KV head for seven": ([7, 10], {"num_kv_heads": 1, "group": 7}),
    "blocks of 1": ([3, 6], {"block_size": 1}),
    "blocks of 16": ([15, 16, 17, 40], {"block_size": 16}),
    "K and V between each other": ([9, 3], {"layout": "between"}),
    "heads first in memory": ([9, 3], {"layout": "heads first"}),
    "loud": ([9, 12], {"loud": 300.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_paged_decode_is_dense_decode(lab: ModuleType, name: str) -> None:
    """Paged decode equals dense attention to 1e-12, with NaN in every slot that no request owns."""
    lens, options = CASES[name]
    case = support.make_case(3, lens, **options)
    got = lab.paged_decode(*case.arguments)
    want = [
        support.dense(q[None], k, v)[0]
        for q, k, v in zip(case.query, case.keys, case.values, strict=True)
    ]
    support.expect_close(got, np.stack(want), f"{name}, lengths {lens}")


def test_the_scale_is_the_callers(lab: ModuleType) -> None:
    """The caller sets the scale: not every model divides by the root of the head size."""
    case = support.make_case(4, [9])
    *arguments, scale = case.arguments
    louder = support.dense(case.query * 3, case.keys[0], case.values[0])
    support.expect_close(lab.paged_decode(*arguments, 3 * scale), louder, "scale 3 / sqrt(5)")
    query, *caches, table, lens = arguments
    got = lab.paged_prefill(query, *caches, table[0], int(lens[0]), 3 * scale)
    support.expect_close(got, louder, "paged_prefill, scale 3 / sqrt(5)")


def test_where_a_block_lies_does_not_matter(lab: ModuleType) -> None:
    """The same tokens in other blocks give the same numbers, to the last bit."""
    case = support.make_case(5, [11, 30])
    before = lab.paged_decode(*case.arguments)
    others = np.random.default_rng(6).permutation(len(case.key_cache))
    case.key_cache[others], case.value_cache[others] = (
        case.key_cache.copy(),
        case.value_cache.copy(),
    )
    case.block_table = others[case.block_table]
    after = lab.paged_decode(*case.arguments)
    assert np.array_equal(before, after), (
        "every block moved and the table says where to: the result differs by "
        f"{np.abs(before - after).max():.1e}. A block's number says where to look, and nothing else"
    )


# ---- chunks of a prompt --------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[13], [4, 4, 5], [1] * 13, [6, 7], [12, 1]], ids=str)
def test_chunks_see_what_the_whole_prompt_sees(lab: ModuleType, chunks: list[int]) -> None:
    """13 tokens give the same output whether they are computed chunk by chunk or all at once."""
    rng = np.random.default_rng(7)
    query, keys = rng.normal(size=(13, 4, 5)), rng.normal(size=(2, 13, 2, 5))
    caches = support.empty_caches((8, 4, 2, 5), "apart")
    table, done, rows = np.array([[6, 1, 4, 3, 7]], np.int32), 0, []
    for chunk in chunks:
        new = slice(done, done + chunk)
        done += chunk
        slots = lab.slot_mapping(table, *flat([0, chunk], [done]), 4)
        lab.write_kv(keys[0, new], keys[1, new], *caches, slots)
        rows.append(lab.paged_prefill(query[new], *caches, table[0], done, 5**-0.5))
    support.expect_close(
        np.concatenate(rows),
        support.dense(query, *keys),
        f"chunks of {chunks}: a row sees a token that comes after it, or misses one. Which position has the "
        "first new row?",
        "A slot that nobody wrote holds NaN, so a token was written to another place or the read went too "
        "far; or a query sees no key at all, and not even its own",
    )
