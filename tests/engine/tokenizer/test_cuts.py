"""A prompt may end inside a character. Both detokenizers go on from its beginning, and repeat nothing."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.tokenizer.byte_level_bpe import BYTE_TO_CHAR, ByteLevelBPE, token_bytes
from tests.engine.helpers.thorough import either
from tests.engine.tokenizer.test_tokenizer import SPECIALS, byte_level_json, metaspace

CUTS = either(1_000, 10_000)
TEXTS = either(500, 1_500)
PIECES = [*"ab zé€", " ", "😀", " 😀", "👩‍👩", "日本", "\ufffd", "e\u0301", "\u2003", "hello"]
# " \xf0\x9f" as GPT-2 has it: a whole character and the beginning of another in one token.
MERGED = [
    b" \xf0",
    b" \xf0\x9f",
    b"\xf0\x9f",
    b"\xf0\x9f\x98",
    b"\xa9 ",
    b"\x80\x8d",
    b"\xc3\xa9",
    b"ab",
]


def spelled(raw: bytes) -> str:
    return "".join(BYTE_TO_CHAR[byte] for byte in raw)


@cache
def byte_level(folder: Path) -> Path:
    """A `tokenizer.json` of bytes, some merged across characters; written once a folder."""
    data = byte_level_json()
    model = data["model"]
    model["merges"] = [f"{spelled(raw[:-1])} {spelled(raw[-1:])}" for raw in MERGED]
    model["vocab"] |= {spelled(raw): 1000 + place for place, raw in enumerate(MERGED)}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def through_the_library(folder: Path) -> Tokenizer:
    pytest.importorskip("tokenizers")
    from mini_vllm.tokenizer.hf import HfCodec

    return Tokenizer(HfCodec(folder / "tokenizer.json", "a test"))


@cache
def beginnings() -> frozenset[bytes]:
    """Every proper beginning of a character in UTF-8."""
    found = set()
    for code in range(0x80, 0x110000, 64):
        if not 0xD800 <= code < 0xE000:
            whole = chr(code).encode()
            found |= {whole[:size] for size in range(1, len(whole))}
    return frozenset(found)


def random_cuts(tokenizer: Tokenizer, seed: int, count: int) -> Any:
    """Prompt, output and whether special tokens are skipped: a text's tokens, and at times any others
    among them, cut anywhere."""
    rng = random.Random(seed)
    vocabulary = [i for i in range(1000 + len(MERGED)) if tokenizer._codec.id_to_token(i)]
    for _ in range(count):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 6)))
        ids = tokenizer.encode(text, False)
        for _ in range(rng.choice((0, 0, 1, 4))):
            others = range(len(SPECIALS)) if rng.random() < 0.7 else vocabulary
            ids.insert(rng.randint(0, len(ids)), rng.choice(others))
        place = rng.randint(0, len(ids))
        yield ids[:place], ids[place : place + 6], rng.random() < 0.5


def wanted(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool) -> str:
    """By the definition: all bytes behind the last character that the prompt completes, as text."""
    codec = tokenizer._codec

    def raw(ids: list[int]) -> bytes:
        seen = [i for i in ids if not (skip and i < len(SPECIALS))]
        return b"".join(token_bytes(codec.id_to_token(i) or "") for i in seen)

    before = raw(prompt)
    ends = (before[-size:] for size in (1, 2, 3))
    end = next((end for end in ends if end in beginnings()), b"")
    return (end + raw(output)).decode("utf-8", "replace")


@pytest.mark.parametrize("library", [False, True])
def test_random_cuts(library: bool, tmp_path: Path) -> None:
    own = Tokenizer.from_folder(byte_level(tmp_path))
    assert isinstance(own._codec, ByteLevelBPE)
    tokenizer = through_the_library(tmp_path) if library else own
    inside = 0
    for prompt, output, skip in random_cuts(own, 8, CUTS):
        stream = tokenizer.stream(skip, prompt)
        shown = [stream.step(token_id) for token_id in output]
        assert not any(text.endswith("\ufffd") for text in shown), "it may be half a character"
        text = "".join(shown) + stream.finish("replace")
        assert text == wanted(own, prompt, output, skip), (prompt, output, skip)
        inside += own.decode(prompt, skip).endswith("\ufffd")
    assert inside > CUTS / 20


@pytest.mark.parametrize("spaces", [False, True])
def test_where_the_prompt_is_whole_text_it_equals_the_library(spaces: bool, tmp_path: Path) -> None:
    """Chunk by chunk, as vLLM primes it (`vllm/v1/engine/detokenizer.py:180`)."""
    tokenizers = pytest.importorskip("tokenizers")
    if spaces:
        metaspace(tokenizers).save(str(tmp_path / "tokenizer.json"))
    else:
        byte_level(tmp_path)
    tokenizer = through_the_library(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rng = random.Random(9)
    compared = 0
    known = [i for i in range(300) if theirs.id_to_token(i)]
    for _ in range(TEXTS):
        ids = rng.choices(known, k=12)
        if rng.random() < 0.7:
            ids = tokenizer.encode("".join(rng.choices(PIECES, k=6)), False)
        place, skip = rng.randint(0, len(ids)), rng.random() < 0.5
        if tokenizer.decode(ids[:place], skip).endswith("\ufffd"):
            continue
        stream = tokenizer.stream(skip, ids[:place])
        library = tokenizers.decoders.DecodeStream(ids=ids[:place], skip_special_tokens=skip)
        for token_id in ids[place:]:
            try:
                expected = library.step(theirs, token_id) or ""
            except Exception as error:
                if "Invalid prefix" not in str(error):
                    raise
                library = tokenizers.decoders.DecodeStream(skip_special_tokens=skip)
                expected = library.step(theirs, token_id) or ""
            assert stream.step(token_id) == expected, (ids, place, skip)
            compared += 1
    assert compared > TEXTS * 2 / 3


def test_cuts_with_byte_fallback(tmp_path: Path) -> None:
    """A run of bytes is text as a whole or not at all; the space of a word stays its own."""
    tokenizers = pytest.importorskip("tokenizers")
    metaspace(tokenizers).save(str(tmp_path / "tokenizer.json"))
    tokenizer = through_the_library(tmp_path)
    rng = random.Random(10)
    inside = 0
    for _ in range(TEXTS):
        text = "".join(rng.choices(["ab ", "a", "é", "😀", " c", "日本"], k=5)).strip() + " ab"
        ids = tokenizer.encode(text, False)
        if rng.random() < 0.3:
            ids.insert(rng.randint(0, len(ids)), 1)  # <s>
        place = rng.randint(0, len(ids))
        whole = next(
            k for k in range(place, -1, -1)
            if not k or not tokenizer.decode(ids[:k], True).endswith("\ufffd")
        )  # fmt: skip
        inside += whole < place
        stream = tokenizer.stream(True, ids[:place])
        shown = "".join(stream.step(token_id) for token_id in ids[place:])
        expected = tokenizer.decode(ids, True)[len(tokenizer.decode(ids[:whole], True)) :]
        assert shown + stream.finish("replace") == expected, (ids, place)
    assert inside > TEXTS / 8


def test_a_word_in_the_place_of_a_characters_rest(tmp_path: Path) -> None:
    """The prompt's bytes come to nothing, and the word keeps its space."""
    tokenizers = pytest.importorskip("tokenizers")
    metaspace(tokenizers).save(str(tmp_path / "tokenizer.json"))
    tokenizer = through_the_library(tmp_path)
    word = tokenizer._codec.token_to_id("▁ab")
    assert word is not None
    for before, marks in (("ab", 1), ("abé", 1), ("é", 1)):
        prompt = [*tokenizer.encode(before, False), *tokenizer.encode("😀", False)[1:2]]
        stream = tokenizer.stream(True, prompt)
        assert stream.step(word) == "\ufffd" * marks + " ab", before
    assert tokenizer.stream(True, prompt).finish("replace") == "\ufffd"


@pytest.mark.parametrize("library", [False, True])
def test_stop_strings_are_sought_in_what_the_output_completes(
    library: bool, tmp_path: Path
) -> None:
    own = Tokenizer.from_folder(byte_level(tmp_path))
    tokenizer = through_the_library(tmp_path) if library else own
    ids = own.encode("stop 😀 stop", False)
    place = len(own.encode("stop 😀", False)) - 1
    assert tokenizer.decode(ids[:place]).endswith("\ufffd")
    for stop, hit, text in (
        ("stop 😀", None, "😀 stop"),  # begins in the prompt
        ("😀", "😀", ""),
        ("\ufffd", None, "😀 stop"),
        (" st", " st", "😀"),
    ):
        params = SamplingParams(stop=[stop])
        one = IncrementalDetokenizer(tokenizer, params, ids[:place])
        found = None
        for token_id in ids[place:]:
            found = one.update([token_id], False)
            if found:
                break
        assert (found, one.get_next_output_text(True, delta=True)) == (hit, text)
