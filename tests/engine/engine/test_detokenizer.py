"""Text grows token by token, is never broken, and ends where a stop string begins."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.engine.detokenizer import IncrementalDetokenizer, check_stop_strings
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.engine.text_helpers import (
    EOS,
    FIRST_BYTE,
    byte_tokenizer,
    ids_of,
    tokenizer_data,
)
from tests.engine.helpers.thorough import either

REPLACEMENT = "\ufffd"
DRAWS = settings(max_examples=either(30, 100))
ANY_IDS = st.lists(st.integers(0, FIRST_BYTE + 255), max_size=40)


def text_of(characters: st.SearchStrategy[str], least: int, most: int) -> st.SearchStrategy[str]:
    """`st.text` would first look all of Unicode up, which takes 2 s in a fresh clone."""
    return st.lists(characters, min_size=least, max_size=most).map("".join)


# All but the halves of pairs.
ANY_CHARACTER = st.integers(0, 0x10F7FF).map(lambda i: chr(i if i < 0xD800 else i + 0x800))
STOPS = st.lists(text_of(st.sampled_from("ab€"), 1, 4), min_size=1, max_size=3)


def detokenizer(**params: object) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(byte_tokenizer(), SamplingParams(**params))  # type: ignore[arg-type]


def feed(ids: list[int], **params: object) -> list[str]:
    """The text after each token, cumulative, with nothing stopping it."""
    one = detokenizer(**params)
    texts = []
    for token_id in ids:
        one.update([token_id], False)
        texts.append(one.output_text)
    return texts


@DRAWS
@given(text_of(st.sampled_from("aé€😀") | ANY_CHARACTER, 0, 12))
def test_text_is_never_broken(text: str) -> None:
    text = text.replace(REPLACEMENT, "")
    shown = feed(ids_of(text))
    for partial in shown:
        assert REPLACEMENT not in partial, "half a character was shown"
        assert text.startswith(partial)
    assert (shown or [""])[-1] == text, "the text is incomplete"


@DRAWS
@given(ANY_IDS)
def test_any_bytes_give_the_text_of_the_whole(ids: list[int]) -> None:
    tokenizer = byte_tokenizer()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    shown = feed(ids)
    for before, after in pairwise(["", *shown]):
        assert after.startswith(before), "shown text was taken back"
        assert whole.startswith(after)
    rest = whole[len(shown[-1]) :] if shown else ""
    assert set(rest) <= {REPLACEMENT}, "more than an unfinished character was held back"


@DRAWS
@given(ANY_IDS, st.booleans())
@pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="tokenizers is not installed"
)
def test_equals_the_tokenizers_librarys_stream(ids: list[int], skip: bool) -> None:
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    library = Tokenizer.from_str(json.dumps(tokenizer_data()))
    stream = DecodeStream(skip_special_tokens=skip)
    expected = "".join(stream.step(library, token_id) or "" for token_id in ids)
    assert (feed(ids, skip_special_tokens=skip) or [""])[-1] == expected


@DRAWS
@given(ANY_IDS, STOPS, st.booleans())
def test_deltas_join_to_the_cumulative_text(ids: list[int], stop: list[str], include: bool) -> None:
    params = {"stop": stop, "include_stop_str_in_output": include}
    streamed, shown = detokenizer(**params), ""
    for number, token_id in enumerate(ids):
        hit = streamed.update([token_id], False)
        finished = hit is not None or number == len(ids) - 1
        shown += streamed.get_next_output_text(finished, delta=True)
        assert shown == streamed.get_next_output_text(finished, delta=False)
        if finished:
            assert shown == streamed.output_text
            break


@DRAWS
@given(text_of(st.sampled_from("ab€c"), 0, 16), STOPS, st.integers(0, 6))
def test_stop_is_found_as_soon_as_it_is_complete(text: str, stop: list[str], least: int) -> None:
    """Against the plain definition: after each character, does the text end in a stop string?"""
    one = detokenizer(stop=stop, min_tokens=least)
    expected = None
    ids: list[int] = []
    for end in range(1, len(text) + 1):
        ids += ids_of(text[end - 1])
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete and len(ids) > least:
            expected = complete[0], text[: end - len(complete[0])]
            break
    found = None
    for token_id in ids:
        hit = one.update([token_id], False)
        if hit is not None:
            found = hit, one.output_text
            break
    assert found == expected


def test_the_token_that_stopped_it_has_no_text() -> None:
    for params, text in (({}, "ab"), ({"include_stop_str_in_output": True}, "abc")):
        one = detokenizer(**params)
        for token_id, last in zip(ids_of("abc"), (False, False, True), strict=True):
            one.update([token_id], last)
        assert one.output_text == text
        assert one.token_ids == ids_of("abc"), "the id stays"


def test_special_tokens() -> None:
    ids = [*ids_of("a"), EOS, *ids_of("b")]
    assert feed(ids)[-1] == "ab"
    assert feed(ids, skip_special_tokens=False)[-1] == "a<eos>b"


def test_without_a_tokenizer_or_detokenize_only_ids() -> None:
    for one in (
        IncrementalDetokenizer(None, SamplingParams()),
        IncrementalDetokenizer(byte_tokenizer(), SamplingParams(detokenize=False)),
    ):
        assert one.update(ids_of("abc"), False) is None
        assert one.token_ids == ids_of("abc")
        assert one.get_next_output_text(True, delta=False) == ""


@pytest.mark.parametrize(
    ("text", "new", "stop", "include", "expected"),
    [
        ("abcabc", 1, ["bc"], False, ("bc", 4)),  # the first "bc" is old news
        ("abcabc", 6, ["bc"], False, ("bc", 1)),
        ("abcabc", 1, ["bc"], True, ("bc", 6)),
        ("abcd", 2, ["bc"], True, ("bc", 3)),  # cut behind the stop string
        ("abcd", 1, ["bc"], False, None),
        ("abc", 0, ["c"], False, None),
        ("abc", 1, ["x", "c", "bc"], False, ("c", 2)),
        ("abc", 3, ["abcd"], False, None),
    ],
)
def test_check_stop_strings(
    text: str, new: int, stop: list[str], include: bool, expected: tuple[str, int] | None
) -> None:
    assert check_stop_strings(text, new, stop, include) == expected


@pytest.mark.vllm
@DRAWS
@given(st.text("ab€", max_size=9), st.integers(0, 9), STOPS, st.booleans())
def test_check_stop_strings_is_vllms(text: str, new: int, stop: list[str], include: bool) -> None:
    from vllm.v1.engine.detokenizer import check_stop_strings as theirs

    new = min(new, len(text))
    expected = theirs(text, new, stop, include)
    if expected is not None and expected[1] == -1:  # upstream's way to say: cut nothing
        expected = expected[0], len(text)
    assert check_stop_strings(text, new, stop, include) == expected


@DRAWS
@given(ANY_IDS, STOPS, st.integers(0, 6), st.lists(st.integers(1, 4), min_size=40, max_size=40))
def test_several_tokens_a_step(
    ids: list[int], stop: list[str], min_tokens: int, sizes: list[int]
) -> None:
    """Drafts bring several tokens at once: the same text ends at the same place, also where a stop string
    stands in the middle of them, or where `min_tokens` is reached there."""
    ids = [token for token in ids if token != EOS]
    single = detokenizer(stop=stop, min_tokens=min_tokens, max_tokens=100)
    several = detokenizer(stop=stop, min_tokens=min_tokens, max_tokens=100)
    found = None
    for token in ids:
        found = single.update([token], False)
        if found is not None:
            break
    start = 0
    for size in sizes:
        ended = several.update(ids[start : start + size], False)
        start += size
        if ended is not None or start >= len(ids):
            break
    assert (ended is None) == (found is None)
    if (
        found is None or len(stop) == 1
    ):  # of several stop strings in one step the first of the list counts
        assert several.output_text == single.output_text
