"""The vocabulary of a GGUF file as `tokenizer.json` and `tokenizer_config.json`.

The file names the rule by which text is cut before merging (`tokenizer.ggml.pre`) but does not hold it, so
each is written out here. A vocabulary of SentencePiece's has scores in the place of merges; the merges follow
from them.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.config.checks import CheckpointError
from mini_vllm.model_loader.gguf.config import Fields, need
from mini_vllm.utils.untrusted import shorten_repr

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
"""`tokenizer.ggml.token_type`."""

_WORDS_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of tiktoken's cl100k, which Llama 3 has."""
_WORDS_1 = _WORDS_3.replace(r"\p{N}{1,3}", r"\p{N}")
"""The same with digits one by one, which Qwen has."""


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, _byte_level(False)]}


_DIGITS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "default": _byte_level(True),
    "gpt-2": _byte_level(True),
    "smollm": _DIGITS,
    "llama-bpe": _split(_WORDS_3),
    "qwen2": _split(_WORDS_1),
}
"""By `tokenizer.ggml.pre`."""
_ADDS_BOS = ("llama-bpe",)
_NORMALIZED = ("qwen2",)


def make_tokenizer(fields: Fields) -> dict[str, Any]:
    """The content of `tokenizer.json`.

    Raises CheckpointError: another kind of vocabulary, or a rule for cutting that is not known here.
    """
    kind = need(fields, "tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level_bpe(fields)
    if kind == "llama":
        return _sentencepiece(fields)
    raise CheckpointError(
        f"tokenizer.ggml.model {shorten_repr(kind)} is not supported; supported: gpt2, llama"
    )


def _tokens(fields: Fields) -> tuple[list[str], list[int]]:
    tokens: list[str] = need(fields, "tokenizer.ggml.tokens")
    types = [int(t) for t in fields.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))]
    return tokens, types


def _added(tokens: list[str], types: list[int], special: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {
            "id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kind in special,
        }
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (*special, _USER)
    ]  # fmt: skip


def _bos(fields: Fields, tokens: list[str], default: bool) -> dict[str, Any] | None:
    """What puts the first token in front of a text; None where nothing does."""
    token_id = fields.get("tokenizer.ggml.bos_token_id")
    if token_id is None or not fields.get("tokenizer.ggml.add_bos_token", default):
        return None
    bos = tokens[int(token_id)]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, text],
        "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, text,
                 {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [int(token_id)], "tokens": [bos]}},
    }  # fmt: skip


def _byte_level_bpe(fields: Fields) -> dict[str, Any]:
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"tokenizer.ggml.pre {shorten_repr(pre)} is not supported; supported: {', '.join(PRE_TOKENIZERS)}"
        )
    tokens, types = _tokens(fields)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, types, (_CONTROL,)),
        "normalizer": {"type": "NFC"} if pre in _NORMALIZED else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": _bos(fields, tokens, pre in _ADDS_BOS),
        "decoder": _byte_level(True) | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [_as_pair(merge) for merge in need(fields, "tokenizer.ggml.merges")],
        },
    }


def _as_pair(merge: str) -> list[str]:
    """Two tokens of a merge. A space separates them; a token may begin with one, but never ends with one."""
    at = merge.index(" ", 1)
    return [merge[:at], merge[at + 1 :]]


def merges_from_scores(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """What a SentencePiece model merges, best first: two tokens whose joint is a token, by its score.

    SentencePiece merges the pair of neighbours with the best joint, whatever its halves are
    (Kudo and Richardson, 2018).
    """
    ids = {token: i for i, token in enumerate(tokens)}
    found = []
    for token, score in zip(tokens, scores, strict=True):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                found.append((-score, -len(left), -len(right), ids[left], ids[right], left, right))
    return [[left, right] for *_, left, right in sorted(found)]


def _sentencepiece(fields: Fields) -> dict[str, Any]:
    tokens, types = _tokens(fields)
    scores = [float(score) for score in need(fields, "tokenizer.ggml.scores")]
    of_text = [t if kind == _NORMAL else "" for t, kind in zip(tokens, types, strict=True)]
    prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    before: list[dict[str, Any]] = [{"type": "Prepend", "prepend": "\u2581"}] if prefix else []
    after: list[dict[str, Any]] = (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    )
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, types, (_CONTROL, _UNKNOWN)),
        "normalizer": {"type": "Sequence", "normalizers": [*before, blank]},
        "pre_tokenizer": None,
        "post_processor": _bos(fields, tokens, True),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *after,
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges_from_scores(of_text, scores),
        },
    }


def make_tokenizer_config(fields: Fields) -> dict[str, Any]:
    """The content of `tokenizer_config.json`: the names of special tokens, and the chat template."""
    tokens, _ = _tokens(fields)
    byte_level = need(fields, "tokenizer.ggml.model") == "gpt2"
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    if not byte_level:
        config["legacy"] = True
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if token_id is not None:
            config[f"{ours}_token"] = tokens[int(token_id)]
    if (template := fields.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return config
