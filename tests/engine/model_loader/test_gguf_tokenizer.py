"""Vocabularies of GGUF files: what becomes of them, beside the tokenizers library and from the definition."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.model_loader.gguf.tokenizer import merges_from_scores
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.models.gguf_helpers import (
    MERGES,
    SPECIAL,
    TOKENS,
    converted,
    make_weights,
)

pytest.importorskip("gguf")

PIECES = [
    "the the then",
    "I'll pay 1,234.50 EUR",
    "\u00e9t\u00e9 \u2014 \U0001f600",
    " \n\n  x",
    "<|user|>the<eos>",
]


def test_a_byte_level_vocabulary(tmp_path: Path) -> None:
    raw, weights = make_weights()
    folder = converted(tmp_path, raw, weights)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode(" the") == [TOKENS.index("\u0120the")]
    assert tokenizer.encode("<eos>") == [2]
    for text in PIECES:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = [{"role": "user", "content": "the"}]
    asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert asked == "<|user|>the<eos><|assistant|>"


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_rule_for_cutting_is_the_librarys(pre: str, tmp_path: Path) -> None:
    """Where the rule is our own BPE's, the ids are those that the tokenizers library gives from the file."""
    tokenizers = pytest.importorskip("tokenizers")
    raw, weights = make_weights()
    merges = [*MERGES, "1 2", "12 3", "123 4", "\u0120 1", "' l", "'l l"]
    tokens = [*TOKENS, *(merge.replace(" ", "") for merge in merges[len(MERGES) :])]
    kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    raw["vocab_size"] = len(tokens)
    raw, weights = make_weights(vocab_size=len(tokens))
    fields = {
        "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": None,
    }  # fmt: skip
    folder = converted(tmp_path, raw, weights, fields=fields)
    ours = Tokenizer.from_folder(folder)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(3)
    alphabet = [
        "the",
        " the",
        "1",
        "2",
        "3",
        "4",
        " ",
        "'ll",
        "x",
        "\u00e9",
        "\n",
        "\u0664",
        "<eos>",
        "\u2155",
    ]
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=rng.randrange(1, 25)))
        assert ours.encode(text) == theirs.encode(text).ids, text
    first = ours.encode("x")[0]
    assert (first == 1) is (pre == "llama-bpe"), (
        "Llama 3 puts <bos> in front where the file says nothing"
    )
    thousand = len(theirs.encode("1234", add_special_tokens=False).ids)
    assert thousand == {"gpt-2": 1, "smollm": 4, "llama-bpe": 2, "qwen2": 4}[pre]


def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE, from its definition: again and again the pair whose joint has the best score."""
    parts = list(text)
    while True:
        joints = [
            (-scores[a + b], i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in scores
        ]
        if not joints:
            return parts
        _, i = min(joints)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    """Merges from scores; a character without a token comes as its bytes; a space in front."""
    pytest.importorskip("tokenizers")
    rng = random.Random(5)
    words = {"\u2581", *"abcd"}
    while len(words) < 60:
        words.add("".join(rng.sample(sorted(words), 2)))
    pieces = sorted(words)
    order = rng.sample(range(len(pieces)), len(pieces))
    scores = {piece: -float(rank) for piece, rank in zip(pieces, order, strict=True)}
    in_bytes = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *in_bytes, *pieces]
    raw, weights = make_weights(vocab_size=len(tokens))
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": None, "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.scores": [0.0] * 259 + [scores[piece] for piece in pieces],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    folder = converted(tmp_path, raw, weights, fields=fields)
    tokenizer = Tokenizer.from_folder(folder)
    for _ in range(200):
        text = "".join(rng.choices("abcd ", k=rng.randrange(1, 30)))
        wanted = merge_by_score("\u2581" + text.replace(" ", "\u2581"), scores)
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == ["<s>", *wanted], text
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    tokens_of_e = tokenizer.convert_ids_to_tokens(tokenizer.encode("\u00e9"))
    assert tokens_of_e[-2:] == ["<0xC3>", "<0xA9>"]


def test_merges_of_a_tie_are_in_the_order_of_their_halves() -> None:
    merges = merges_from_scores(["a", "b", "ab", "abb", "bb"], [0, 0, -1, -2, -1])
    assert merges == [["a", "b"], ["b", "b"], ["ab", "b"], ["a", "bb"]]
