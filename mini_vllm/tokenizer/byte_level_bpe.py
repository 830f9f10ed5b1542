"""Byte-level BPE, encoding and incremental decoding, from the content of a `tokenizer.json`.

Gives exactly what the `tokenizers` library gives for the files that `why_not_byte_level` accepts.
`ByteStream` follows that library's `DecodeStream`, on which vLLM's `FastIncrementalDetokenizer`
rests (`vllm/v1/engine/detokenizer.py:167 FastIncrementalDetokenizer`).
"""

from __future__ import annotations

import codecs
import heapq
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

REPLACEMENT = "\ufffd"
MOST_TOKENS = 4
"""No character has more bytes, and a token that shows holds at least one: so many hold its beginning."""


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    GPT-2's table (Radford et al., 2019): a byte that prints in Latin-1 stands for itself, the
    others take the code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return {b: chr(b) if b in printable else chr(next(others)) for b in range(256)}


BYTE_TO_CHAR = byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}
_BIT = 65536
# str.translate maps code points, and latin-1 gives each byte as the code point of the same number.
_TO_ALPHABET: dict[int, str] = dict(BYTE_TO_CHAR)

_CONTRACTION = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
# GPT-2's split over the class of each character: Letter, Number, Other, blank (_) or any other
# Space.
_CLASSES = re.compile(r"_?L+|_?N+|_?O+|[_S]+(?![LNO])|[_S]+")
_WHITE_SPACE = frozenset("\t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000").union(
    map(chr, range(0x2000, 0x200B))
)


def _char_class(char: str) -> str:
    if char == " ":
        return "_"
    if char in _WHITE_SPACE:
        return "S"
    major = unicodedata.category(char)[0]
    return major if major in "LN" else "O"


def split_gpt2(text: str) -> list[str]:
    """Cut `text` into the pieces between which GPT-2's BPE never merges.

    The published pattern uses `\\p{L}` and `\\p{N}`, which `re` lacks, so each character is
    replaced by its class first and the pattern runs over the classes.
    """
    classes = "".join(map(_char_class, text))
    pieces = []
    at = 0
    while at < len(text):
        match = _CONTRACTION.match(text, at) or _CLASSES.match(classes, at)
        assert match is not None, (
            "every character has a class, and every class starts an alternative"
        )
        pieces.append(text[at : match.end()])
        at = match.end()
    return pieces


def split_digits(text: str) -> list[str]:
    """Cut every numeric character off its neighbours, as the pre-tokenizer `Digits` does with
    `individual_digits`. Numeric is what Unicode says: all of N."""
    pieces: list[str] = []
    alone = True
    for char in text:
        numeric = unicodedata.category(char)[0] == "N"
        if numeric or alone:
            pieces.append(char)
        else:
            pieces[-1] += char
        alone = numeric
    return pieces


def flat_steps(node: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The members of a `Sequence` node, or the node itself, as a flat list."""
    if node is None:
        return []
    return (
        [s for n in node[key] for s in flat_steps(n, key)] if node["type"] == "Sequence" else [node]
    )


def why_not_byte_level(data: Mapping[str, Any]) -> str | None:
    """None where `ByteLevelBPE` gives exactly what the library gives; else the feature it lacks."""
    model = data["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        return f"model type {model.get('type')!r}"
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            return f"BPE option {key}={model[key]!r}"
    if data.get("normalizer") is not None:
        return f"normalizer {data['normalizer'].get('type')!r}"
    before = flat_steps(data.get("pre_tokenizer"), "pretokenizers")
    if [step["type"] for step in before] == ["Digits", "ByteLevel"]:
        # The library puts its space in front of every piece that Digits leaves.
        if not before[0].get("individual_digits") or before[1].get("add_prefix_space", True):
            return (
                "pre_tokenizer 'Digits' with more than one digit a piece, or with add_prefix_space"
            )
    elif [step["type"] for step in before] != ["ByteLevel"]:
        return f"pre_tokenizer {(data.get('pre_tokenizer') or {}).get('type')!r}"
    if [s["type"] for s in flat_steps(data.get("decoder"), "decoders")] != ["ByteLevel"]:
        return f"decoder {(data.get('decoder') or {}).get('type')!r}"
    for step in flat_steps(data.get("post_processor"), "processors"):
        if step["type"] not in ("ByteLevel", "TemplateProcessing"):
            return f"post_processor {step['type']!r}"
    for token in data.get("added_tokens", []):
        if token.get("single_word") or token.get("lstrip") or token.get("rstrip"):
            return f"added token {token['content']!r} with single_word, lstrip or rstrip"
    missing = [byte for char, byte in CHAR_TO_BYTE.items() if char not in model["vocab"]]
    # What is missing is dropped. That is no tokenizer of text any more where it is a character of ASCII's.
    if missing and (model.get("unk_token") or any(0x20 <= byte < 0x7F for byte in missing)):
        return "a vocabulary without all 256 bytes"
    return None


class ByteLevelBPE:
    """Byte-level BPE: every byte has a token, and merges join them. A byte without one is dropped, as in the
    library, and its neighbours then stand together: SmolLM2's vocabulary lacks 21, which text hardly has.

    Args:
        data: the content of a `tokenizer.json` for which `why_not_byte_level` returns None.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        model = data["model"]
        self._vocab: dict[str, int] = model["vocab"]
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        self._rank: dict[tuple[str, str], int] = {(a, b): rank for rank, (a, b) in enumerate(pairs)}
        self._ignore_merges = bool(model.get("ignore_merges"))
        *digits, byte_level = flat_steps(data["pre_tokenizer"], "pretokenizers")
        self._split_digits = bool(digits)
        self._add_prefix_space = byte_level.get("add_prefix_space", True)
        self._use_regex = byte_level.get("use_regex", True)
        added = data.get("added_tokens", [])
        self._added = {token["content"]: int(token["id"]) for token in added}
        self._special = frozenset(int(token["id"]) for token in added if token.get("special"))
        # The library looks for the tokens that are not normalised first, then for the others in
        # what is left.
        self._splitters = [
            re.compile("|".join(re.escape(c) for c in sorted(group, key=len, reverse=True)))
            for wanted in (False, True)
            if (group := [t["content"] for t in added if bool(t.get("normalized")) == wanted])
        ]
        tokens = {i: t for t, i in self._vocab.items()} | {i: t for t, i in self._added.items()}
        self._tokens = tokens
        self._bytes = {i: token_bytes(token) for i, token in tokens.items()}
        self._text = {i: _whole_text(raw) for i, raw in self._bytes.items()}
        self.vocab_size = len(self._bytes)
        self._prefix, self._suffix = _template(data.get("post_processor"), self.token_to_id)
        unknown = "".join(char for char in CHAR_TO_BYTE if char not in self._vocab)
        self._unknown = re.compile(f"[{re.escape(unknown)}]") if unknown else None
        self._cache: dict[str, list[int]] = {}

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by its spelling in the vocabulary, or None."""
        return self._added.get(token, self._vocab.get(token))

    def id_to_token(self, token_id: int) -> str | None:
        """A token by its id, as it is spelled in the vocabulary, or None."""
        return self._tokens.get(token_id)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer.encode`."""
        ids = list(self._prefix) if add_special_tokens else []
        for segment, token_id in self._split_added(text):
            if token_id is not None:
                ids.append(token_id)
                continue
            if self._add_prefix_space and not segment.startswith(" "):
                segment = " " + segment
            for piece in self._pieces(segment):
                # A lone surrogate is no text: it takes the place of one unknown character.
                raw = piece.encode("utf-8", errors="replace")
                ids.extend(self._bpe(_to_alphabet(raw)))
        return ids + self._suffix if add_special_tokens else ids

    def _pieces(self, segment: str) -> list[str]:
        """What is merged apart."""
        pieces = split_digits(segment) if self._split_digits else [segment]
        return [p for piece in pieces for p in split_gpt2(piece)] if self._use_regex else pieces

    def _split_added(self, text: str) -> list[tuple[str, int | None]]:
        parts: list[tuple[str, int | None]] = [(text, None)] if text else []
        for pattern in self._splitters:
            cut: list[tuple[str, int | None]] = []
            for segment, token_id in parts:
                if token_id is not None:
                    cut.append((segment, token_id))
                    continue
                at = 0
                for match in pattern.finditer(segment):
                    if match.start() > at:
                        cut.append((segment[at : match.start()], None))
                    cut.append((match.group(), self._added[match.group()]))
                    at = match.end()
                if at < len(segment):
                    cut.append((segment[at:], None))
            parts = cut
        return parts

    def _bpe(self, word: str) -> list[int]:
        """Ids of one piece: its characters, merged as `_merged` says."""
        if not self._rank:
            return [self._vocab[char] for char in word if char in self._vocab]
        if (known := self._cache.get(word)) is not None:
            return known
        if self._ignore_merges and word in self._vocab:
            return [self._vocab[word]]
        there = self._unknown.sub("", word) if self._unknown else word
        ids = [self._vocab[part] for part in self._merged(there)]
        if len(self._cache) < 10_000 and len(word) < 64:
            self._cache[word] = ids
        return ids

    def _merged(self, word: str) -> list[str]:
        """Merge the adjacent pair of lowest rank, leftmost first, until no pair has a rank.

        A heap holds the pairs, because looking at all of them for each merge takes minutes for a line
        of 100,000 characters without a blank.
        """
        parts, end = list(word), len(word)
        before = list(range(-1, end - 1))  # of each part, the one in front of it, and behind
        behind = list(range(1, end + 1))
        heap: list[tuple[int, int, str]] = []  # rank, place of the left part, text of both

        def offer(left: int) -> None:
            if left >= 0 and (right := behind[left]) < end:
                rank = self._rank.get((parts[left], parts[right]))
                if rank is not None:
                    heapq.heappush(heap, (rank, left, parts[left] + parts[right]))

        for i in range(end):
            offer(i)
        while heap:
            rank, left, both = heapq.heappop(heap)
            right = behind[left]
            # A pair one of whose parts was merged since is out of date.
            if right == end or self._rank.get((parts[left], parts[right])) != rank:
                continue
            parts[left], parts[right] = both, ""
            behind[left] = behind[right]
            if behind[left] < end:
                before[behind[left]] = left
            offer(before[left])
            offer(left)
        return [part for part in parts if part]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """See `Tokenizer.decode`."""
        hidden = self._special if skip_special_tokens else frozenset()
        raw = b"".join(self._bytes.get(i, b"") for i in ids if i not in hidden)
        return raw.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._bytes.get(token_id, b"")

    def id_to_piece(self, token_id: int) -> str:
        """See `Tokenizer.id_to_piece`."""
        if token_id not in self._bytes:
            raise ValueError(
                f"token id {token_id} has no token; the vocabulary has {self.vocab_size}"
            )
        text = self._bytes[token_id].decode("utf-8", errors="surrogateescape")
        return "".join(
            f"<0x{ord(c) - 0xDC00:02X}>"
            if 0xDC80 <= ord(c) <= 0xDCFF
            else c
            if c.isprintable()
            else c.encode("unicode_escape").decode("ascii")
            for c in text
        )

    def stream(self, skip_special_tokens: bool, prompt: Sequence[int]) -> ByteStream:
        """See `Tokenizer.stream`."""
        hidden = self._special if skip_special_tokens else frozenset()
        return ByteStream(self._text, self._bytes, hidden, prompt)


def _to_alphabet(raw: bytes) -> str:
    """Each byte's character. Bit by bit: of megabytes, one call would keep all other threads waiting."""
    if len(raw) <= _BIT:
        return raw.decode("latin-1").translate(_TO_ALPHABET)
    return "".join(_to_alphabet(raw[i : i + _BIT]) for i in range(0, len(raw), _BIT))


def token_bytes(token: str) -> bytes:
    """Bytes of a token by its spelling; one with a character outside the alphabet is text (added
    tokens).
    """
    try:
        return bytes(CHAR_TO_BYTE[char] for char in token)
    except KeyError:
        return token.encode("utf-8")


def unfinished(raw: bytes) -> bytes:
    """The end of `raw` that is the beginning of a character; none where its last character is whole or
    no character's beginning. What stands in front of `raw` makes no difference."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw)
    return decoder.getstate()[0]


def _whole_text(raw: bytes) -> str | None:
    """The text of `raw` if it can be shown at once, None if it must wait for the bytes that
    follow.
    """
    text = raw.decode("utf-8", errors="replace")
    return None if REPLACEMENT in text else text


def _template(
    node: Mapping[str, Any] | None, token_to_id: Callable[[str], int | None]
) -> tuple[list[int], list[int]]:
    """Ids that the post-processor puts before and after a single text."""
    before: list[int] = []
    after: list[int] = []
    for step in flat_steps(node, "processors"):
        if step["type"] != "TemplateProcessing":
            continue
        ids: list[int] = []
        sides: list[list[int]] = []
        for item in step["single"]:
            if "Sequence" in item:
                sides.append(ids)
                ids = []
            else:
                ids.extend(step["special_tokens"][item["SpecialToken"]["id"]]["ids"])
        if len(sides) != 1:
            raise KeyError("a template with one sequence")
        before, after = sides[0] + before, after + ids
    return before, after


class ByteStream:
    """A token stream over bytes: emit when the text of the pending bytes no longer ends in U+FFFD.

    That is `DecodeStream`'s rule, which also holds back a genuine U+FFFD until the next
    character. One difference: where the prompt's text ends in U+FFFD, the library emits the whole
    prompt again with the first output; this stream goes on from the prompt's unfinished character.
    """

    def __init__(
        self,
        text: Mapping[int, str | None],
        raw: Mapping[int, bytes],
        hidden: frozenset[int],
        prompt: Sequence[int] = (),
    ) -> None:
        self._text = text
        self._bytes = raw
        self._hidden = hidden
        seen = (raw[i] for i in reversed(prompt) if i not in hidden and raw.get(i))
        self._pending = unfinished(b"".join([*islice(seen, MOST_TOKENS)][::-1]))

    def step(self, token_id: int) -> str:
        """Take one id; return the text that it completes, possibly empty."""
        if token_id in self._hidden:
            return ""
        if not self._pending:
            text = self._text.get(token_id, "")
            if text is not None:
                return text
        self._pending += self._bytes.get(token_id, b"")
        text = self._pending.decode("utf-8", errors="replace")
        if text.endswith(REPLACEMENT):
            return ""
        self._pending = b""
        return text

    def finish(self, errors: str = "ignore") -> str:
        """End the stream; see `TokenStream.finish`."""
        held, self._pending = self._pending, b""
        return held.decode("utf-8", errors="replace") if errors == "replace" else ""
