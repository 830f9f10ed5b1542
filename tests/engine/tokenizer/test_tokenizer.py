"""The tokenizer: byte-level BPE as the `tokenizers` library has it, and streamed characters."""

from __future__ import annotations

import builtins
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.model_loader.safetensors_file import CheckpointError
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.tokenizer.byte_level_bpe import BYTE_TO_CHAR, ByteLevelBPE, split_gpt2
from tests.engine.helpers.thorough import either

SPECIALS = ["<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>"]
FIRST_BYTE = len(SPECIALS)
POOL = [
    *"ab zA'stre ll 0129²½Ⅷ一日本\n\t\r\x0b\x1c\x85\u00a0\u2003\u200b\u3000é́😀_-.,!?<>|",
    *SPECIALS,
    *[
        "👩‍👩",
        "llama",
        "hello world",
        "'re",
        "'ll",
        " 's",
        "  ",
        "don't",
        "\ufffd",
        "cafés",
        "e\u0301",
    ],
]


def byte_level_json(**changes: Any) -> dict[str, Any]:
    """A byte tokenizer, as the shipped checkpoint has one."""
    vocab = {content: i for i, content in enumerate(SPECIALS)}
    vocab |= {BYTE_TO_CHAR[b]: FIRST_BYTE + b for b in range(256)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for i, c in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<bos>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    } | changes


def merged_json(merges: Any) -> dict[str, Any]:
    """The byte tokenizer with GPT-2's split and some merges."""
    data = byte_level_json()
    data["pre_tokenizer"]["use_regex"] = True
    data["model"]["merges"] = merges
    for merge in merges:
        joined = "".join(merge.split(" ") if isinstance(merge, str) else merge)
        data["model"]["vocab"].setdefault(joined, len(data["model"]["vocab"]))
    return data


MERGES = [
    "h e",
    "l l",
    "he ll",
    "hell o",
    "Ġ w",
    "o r",
    "Ġw or",
    "Ã ©",
    "l d",
    "ð Ł",
    "ðŁ ĺ",
    "Ġ Ġ",
]


def write(folder: Path, data: dict[str, Any], config: dict[str, Any] | None = None) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    named = {"bos_token": "<bos>", "eos_token": {"content": "<eos>", "special": True}}
    return write(tmp_path, byte_level_json(), named)


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(POOL, k=rng.randrange(25))) for _ in range(count)]


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip)
    return [stream.step(i) for i in ids]


def test_bytes_and_specials(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 256 + len(SPECIALS)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("é!") == [1, *(FIRST_BYTE + b for b in "é!".encode())]
    assert tokenizer.encode("é!", add_special_tokens=False) == tokenizer.encode("é!")[1:]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.encode("a<|user|>b<eos>") == [1, FIRST_BYTE + 97, 3, FIRST_BYTE + 98, 2]
    assert tokenizer.encode("<|user|") == [1, *(FIRST_BYTE + b for b in b"<|user|")]


def test_decode(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|user|>日<eos>")
    assert tokenizer.decode(ids) == "<bos>a<|user|>日<eos>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a日"
    assert tokenizer.decode([FIRST_BYTE + 0xE6, FIRST_BYTE + 0x97]) == "\ufffd"
    assert tokenizer.decode([FIRST_BYTE + 97, 10**6, FIRST_BYTE + 98]) == "ab"
    assert tokenizer.decode([]) == ""


def test_id_to_piece(tokenizer: Tokenizer) -> None:
    pieces = [tokenizer.id_to_piece(FIRST_BYTE + b) for b in (0x41, 0x20, 0x0A, 0xE6, 0x00)]
    assert pieces == ["A", " ", "\\n", "<0xE6>", "\\x00"]
    assert tokenizer.id_to_piece(3) == "<|user|>"
    with pytest.raises(ValueError, match="261"):
        tokenizer.id_to_piece(261)
    assert all(tokenizer.id_to_piece(i).isprintable() for i in range(tokenizer.vocab_size))


def test_token_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in (FIRST_BYTE + 0xE6, 3, 10**6)] == [
        b"\xe6",
        b"<|user|>",
        b"",
    ]


def test_stream_holds_back_unfinished_characters(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("né😀!", add_special_tokens=False)
    assert streamed(tokenizer, ids) == ["n", "", "é", "", "", "", "😀", "!"]
    # A byte that begins nothing waits until the next byte shows that it never will.
    broken = [FIRST_BYTE + b for b in (0xFF, 0x61, 0xE6, 0x97, 0x62)]
    assert streamed(tokenizer, broken) == ["", "\ufffda", "", "", "\ufffdb"]


def test_stream_and_special_tokens(tokenizer: Tokenizer) -> None:
    ids = [FIRST_BYTE + 97, 3, FIRST_BYTE + 0xC3, 2, FIRST_BYTE + 0xA9]
    assert streamed(tokenizer, ids) == ["a", "", "", "", "é"]
    assert streamed(tokenizer, ids, skip=False) == ["a", "<|user|>", "", "\ufffd<eos>", ""]


def test_stream_finish(tokenizer: Tokenizer) -> None:
    for errors, tail in (("ignore", ""), ("replace", "\ufffd")):
        stream = tokenizer.stream()
        assert [stream.step(FIRST_BYTE + b) for b in (0x61, 0xF0, 0x9F)] == ["a", "", ""]
        assert stream.finish(errors) == tail
        assert stream.finish(errors) == ""


def test_stream_goes_on_from_a_prompt_that_ends_inside_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("né😀!", add_special_tokens=False)
    for cut in range(len(ids) + 1):
        stream = tokenizer.stream(prompt_token_ids=ids[:cut])
        text = "".join(stream.step(i) for i in ids[cut:])
        assert tokenizer.decode(ids[:cut]).rstrip("\ufffd") + text == "né😀!"


def test_stream_equals_decode_on_random_bytes(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(500):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(12))]
        for skip in (True, False):
            stream = tokenizer.stream(skip_special_tokens=skip)
            text = "".join(stream.step(i) for i in ids)
            assert text + stream.finish("replace") == tokenizer.decode(ids, skip)
            assert not text.endswith("\ufffd")


def test_round_trip(tokenizer: Tokenizer, tmp_path: Path) -> None:
    merged = write(tmp_path, merged_json(MERGES))
    for text in random_texts(1, 300):
        for each in (tokenizer, merged):
            ids = each.encode(text, add_special_tokens=False)
            assert each.decode(ids, skip_special_tokens=False) == text
            if not text.endswith("\ufffd"):
                assert "".join(streamed(each, ids, skip=False)) == text


def test_merges_by_rank(tmp_path: Path) -> None:
    for merges in (MERGES, [m.split(" ") for m in MERGES]):
        merged = write(tmp_path, merged_json(merges))
        pieces = [merged.id_to_piece(i) for i in merged.encode("hello world", False)]
        assert pieces == ["hello", " wor", "ld"]
        # "ll" has a lower rank than "hell": no "hel" + "l".
        assert [merged.id_to_piece(i) for i in merged.encode("hellll", False)] == ["hell", "ll"]


def test_merges_are_those_of_looking_at_every_pair() -> None:
    """The heap gives what the rule says, word for word: lowest rank first, of equals the leftmost."""
    rng = random.Random(5)
    for _ in range(60):
        tokens, pairs = list("abc"), []
        for _ in range(rng.randrange(1, 25)):
            pairs.append((rng.choice(tokens), rng.choice(tokens)))
            tokens.append("".join(pairs[-1]))
        rng.shuffle(pairs)  # a file may rank a merge before the ones that make its parts
        vocab = {char: i for i, char in enumerate([*BYTE_TO_CHAR.values(), *sorted(set(tokens))])}
        node = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        model = {"type": "BPE", "vocab": vocab, "merges": [list(pair) for pair in pairs]}
        codec = ByteLevelBPE({"model": model, "pre_tokenizer": node, "decoder": node})
        rank = {pair: i for i, pair in enumerate(pairs)}
        for _ in range(20):
            word = "".join(rng.choice("abc") for _ in range(rng.randrange(40)))
            parts = list(word)
            while ranked := [(rank[p], i) for i, p in enumerate(pairwise(parts)) if p in rank]:
                at = min(ranked)[1]
                parts[at : at + 2] = ["".join(parts[at : at + 2])]
            assert codec.encode(word, False) == [vocab[part] for part in parts]


def test_split_gpt2() -> None:
    assert split_gpt2("it's 10  o'clock\n") == ["it", "'s", " 10", " ", " o", "'", "clock", "\n"]
    assert split_gpt2("a  b") == ["a", " ", " b"]
    assert split_gpt2("²½_x\u00a0y") == ["²½", "_", "x", "\u00a0", "y"]
    for text in random_texts(2, 200):
        assert "".join(split_gpt2(text)) == text


def variants() -> dict[str, dict[str, Any]]:
    """tokenizer.json files that need no library."""
    prefix = merged_json(MERGES)
    prefix["pre_tokenizer"]["add_prefix_space"] = True
    both_ends = merged_json(MERGES)
    template = both_ends["post_processor"]
    template["single"].append({"SpecialToken": {"id": "<eos>", "type_id": 0}})
    template["special_tokens"]["<eos>"] = {"id": "<eos>", "ids": [2], "tokens": ["<eos>"]}
    trim = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    both_ends["post_processor"] = {"type": "Sequence", "processors": [trim, template]}
    whole_words = merged_json(MERGES)
    whole_words["model"]["ignore_merges"] = True
    whole_words["model"]["vocab"]["Ġhello"] = len(whole_words["model"]["vocab"])
    added = merged_json(MERGES)
    added["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [added["pre_tokenizer"]]}
    first = len(added["model"]["vocab"])
    for i, content in enumerate(["llama", "lla", "hello world", "naïve token"]):
        common = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
        added["added_tokens"].append(
            {"id": first + i, "content": content, "normalized": i % 2 == 0} | common
        )
    return {
        "bytes": byte_level_json(),
        "merges": merged_json(MERGES),
        "prefix-space": prefix,
        "old-post-processor": merged_json(MERGES) | {"post_processor": trim},
        "bos-eos": both_ends,
        "ignore-merges": whole_words,
        "added-tokens": added,
    }


@pytest.mark.parametrize("name", variants())
def test_equals_the_tokenizers_library(name: str, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    ours = write(tmp_path, variants()[name])
    assert isinstance(ours._codec, ByteLevelBPE)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert ours.vocab_size == theirs.get_vocab_size()
    rng = random.Random(4)
    for text in [
        *random_texts(3, either(100, 400)),
        "hello world llama llama",
        " hello",
        "naïve token",
    ]:
        for special in (True, False):
            expected = theirs.encode(text, add_special_tokens=special).ids
            assert ours.encode(text, special) == expected, repr(text)
        ids = [*theirs.encode(text).ids, *rng.choices(range(ours.vocab_size + 3), k=6)]
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
            library = tokenizers.decoders.DecodeStream(skip_special_tokens=skip)
            assert streamed(ours, ids, skip) == [library.step(theirs, i) or "" for i in ids]


def test_stream_after_a_prompt_equals_the_library(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As vLLM primes it (vllm/v1/engine/detokenizer.py:180), on prompts that are whole text."""
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for prompt, text in zip(random_texts(5, 200), random_texts(6, 200), strict=True):
        if prompt.endswith("\ufffd"):
            continue  # here the library emits the prompt a second time
        before, ids = tokenizer.encode(prompt), tokenizer.encode(text, False)
        library = tokenizers.decoders.DecodeStream(ids=before, skip_special_tokens=True)
        stream = tokenizer.stream(prompt_token_ids=before)
        assert [stream.step(i) for i in ids] == [library.step(theirs, i) or "" for i in ids]


def metaspace(tokenizers: Any) -> Any:
    """A SentencePiece-like tokenizer, whose first word has no space and byte fallback."""
    vocab = {"<unk>": 0, "<s>": 1} | {f"<0x{b:02X}>": 2 + b for b in range(256)}
    for piece in ["▁", "a", "b", "c", "▁a", "▁ab"]:
        vocab[piece] = len(vocab)
    model = tokenizers.models.BPE(
        vocab, [("▁", "a"), ("▁a", "b")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<s>"])
    made.enable_truncation(3)
    return made


def test_other_tokenizers_go_through_the_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    theirs = metaspace(tokenizers)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    text = "ab ab abcé 😀 a"
    ids = ours.encode(text)
    theirs.no_truncation()
    assert ids == theirs.encode(text).ids
    assert len(ids) > 3, "truncation in the file must not cut prompts"
    assert ours.vocab_size == theirs.get_vocab_size()
    assert ours.decode(ids) == text
    assert ours.id_to_piece(ids[0]) == "▁ab"
    with pytest.raises(ValueError, match="9999"):
        ours.id_to_piece(9999)
    stream = ours.stream(prompt_token_ids=ids[:1])
    pieces = [stream.step(i) for i in ids[1:]]
    assert "".join(pieces) == text[2:], "the space before a word belongs to the output"
    assert not any("\ufffd" in piece for piece in pieces)
    stream = ours.stream()
    assert [stream.step(i) for i in ids[:1]] + [stream.step(2 + 0xF0)] == ["ab", ""]
    assert stream.finish("replace") == "\ufffd"


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        ({"normalizer": {"type": "NFC"}}, "NFC"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
        ({"decoder": {"type": "Metaspace"}}, "Metaspace"),
        ({"decoder": None}, "decoder"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "Unigram"),
        ({"post_processor": {"type": "BertProcessing"}}, "BertProcessing"),
    ],
)
def test_the_library_is_missing(
    change: dict[str, Any], feature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "tokenizers":
            raise ImportError("No module named 'tokenizers'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CheckpointError, match="tokenizers") as caught:
        write(tmp_path, byte_level_json(**change))
    assert feature in str(caught.value)
    assert 'pip install -e ".[hf]"' in str(caught.value)
    # The shipped kind needs no library.
    assert write(tmp_path, byte_level_json()).encode("a", False) == [FIRST_BYTE + 97]


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    path = tmp_path / "tokenizer.json"
    for text in ("{", "[]", "{}", '{"model": 3}'):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            Tokenizer.from_folder(tmp_path)


def test_names_of_bos_and_eos(tmp_path: Path) -> None:
    plain = write(tmp_path, byte_level_json())
    assert (plain.bos_token_id, plain.eos_token_id) == (None, None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|user|>"}))
    assert Tokenizer.from_folder(tmp_path).eos_token_id == 3
    unknown = write(tmp_path, byte_level_json(), {"bos_token": "<nowhere>", "eos_token": None})
    assert (unknown.bos_token_id, unknown.eos_token_id) == (None, None)
