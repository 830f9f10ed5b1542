"""A `tokenizer.json` that is no byte-level BPE, through the `tokenizers` library (extra
`hf`).

Imported only where it is needed: the shipped checkpoint runs without the library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.config.checks import CheckpointError
from mini_vllm.model_loader import read_json
from mini_vllm.tokenizer.byte_level_bpe import (
    MOST_TOKENS,
    REPLACEMENT,
    flat_steps,
    token_bytes,
    unfinished,
)
from mini_vllm.utils.extras import how_to_get

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class HfCodec:
    """Any other `tokenizer.json`, through the `tokenizers` library.

    Args:
        path: the file.
        reason: what `ByteLevelBPE` lacks, for the message where the library is missing.
    """

    def __init__(self, path: Path, reason: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise CheckpointError(
                f"{path} uses {reason}, which needs the tokenizers library: {how_to_get('hf')}"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file it cannot read
            raise CheckpointError(
                f"{path} cannot be read by the tokenizers library: {error}"
            ) from error
        # What the file may say of these is meant for training batches; transformers resets it too.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        decoders = flat_steps(read_json(path).get("decoder"), "decoders")
        self._known = HfTokens(self._tokenizer, [step["type"] for step in decoders])

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by its spelling in the vocabulary, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def id_to_token(self, token_id: int) -> str | None:
        """A token by its id, as it is spelled in the vocabulary, or None."""
        found: str | None = self._tokenizer.id_to_token(token_id)
        return found

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer.encode`."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """See `Tokenizer.decode`."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def id_to_piece(self, token_id: int) -> str:
        """See `Tokenizer.id_to_piece`. Prints the spelling in the vocabulary."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            raise ValueError(
                f"token id {token_id} has no token; the vocabulary has {self.vocab_size}"
            )
        return str(token)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._known.token_bytes(token_id)

    def stream(self, skip_special_tokens: bool, prompt: Sequence[int]) -> HfStream:
        """See `Tokenizer.stream`."""
        return HfStream(self._tokenizer, skip_special_tokens, prompt, self._known)


class HfStream:
    """`TokenStream` over the library's decoding: `DecodeStream`'s rule, and vLLM's way out when it loses its
    place (`vllm/v1/engine/detokenizer.py:223 FastIncrementalDetokenizer._protected_step`): start afresh at
    the current token.

    One difference: where the prompt's text ends in U+FFFD, `DecodeStream` takes none of it for shown, and
    gives the whole prompt again with the first output (vLLM issue 48853). This stream goes on from the
    prompt's unfinished character, as `ByteStream` does.

    Args:
        tokenizer: the library's.
        skip_special_tokens: leave special tokens out of the text.
        prompt: what came before.
        known: the rest of what `HfCodec` knows of it.
    """

    def __init__(
        self, tokenizer: Any, skip_special_tokens: bool, prompt: Sequence[int], known: HfTokens
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(prompt)  # what the next text is decoded with
        self._shown = self._decode()  # the text of `_ids`, as far as it was given
        self._num_shown = len(self._ids)  # their tokens that it needs
        self._held: list[int] = []
        if self._shown.endswith(REPLACEMENT):
            self._ids, self._shown = known.cut(self._ids, self._shown, skip_special_tokens)
            self._num_shown = 0

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=self._skip))

    def step(self, token_id: int) -> str:
        """See `TokenStream.step`."""
        if not self._shown and self._ids and not self._num_shown:
            # Tokens without text, or whose text the library strips at the beginning.
            self._num_shown = 0 if self._decode().endswith(REPLACEMENT) else len(self._ids)
        self._held.append(token_id)
        self._ids.append(token_id)
        text = self._decode()
        # The library counts bytes here; of two texts with one beginning, the order is the same.
        if len(text.encode()) <= len(self._shown.encode()) or text.endswith(REPLACEMENT):
            return ""
        if not text.startswith(self._shown):
            self._ids, self._shown, self._num_shown = [token_id], "", 0
            text = self._decode()
            if not text or text.endswith(REPLACEMENT):
                return ""
        new = text[len(self._shown) :]
        # The tokens of the text before have done their part: they were there for those after them.
        del self._ids[: self._num_shown]
        self._shown, self._num_shown = self._decode(), len(self._ids)
        self._held = []
        return new

    def finish(self, errors: str = "ignore") -> str:
        """See `TokenStream.finish`."""
        held, self._held = self._held, []
        if errors != "replace":
            return ""
        text = self._decode()
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        return str(self._tokenizer.decode(held, skip_special_tokens=self._skip))


class HfTokens:
    """The bytes that tokens stand for, where a tokenizer has tokens of less than a character.

    Args:
        tokenizer: the library's.
        decoders: the kinds of its decoder's steps, as `tokenizer.json` has them.
    """

    def __init__(self, tokenizer: Any, decoders: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._byte_level = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`. SentencePiece writes a space as `▁`."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return token_bytes(str(token))
        byte = self._fallback_byte(token_id) if self._byte_fallback else None
        return str(token).replace("▁", " ").encode() if byte is None else byte

    def cut(self, ids: list[int], text: str, skip_special_tokens: bool) -> tuple[list[int], str]:
        """Where to go on after a prompt whose text ends in U+FFFD.

        Args:
            ids: the prompt.
            text: its text.
            skip_special_tokens: whether special tokens have none.

        Returns what the next tokens are to be decoded with, and as much of its text as they cannot change:
            all but the beginning of a character at its end.
        """
        hidden = self._special if skip_special_tokens else frozenset()
        seen = [i for i in ids if i not in hidden and self._tokenizer.id_to_token(i) is not None]
        if self._byte_level:
            raw = [self._spelled(i) for i in seen[-MOST_TOKENS:]]
            return (ids, text[:-1]) if unfinished(b"".join(raw)) else (ids, text)
        # A run of bytes is text as a whole, or each of them is U+FFFD. So what of it is whole text goes: in
        # front of something else than the rest of its last character it would be lost too.
        run = b""
        while self._byte_fallback and len(run) < len(seen):
            byte = self._fallback_byte(seen[-1 - len(run)])
            if byte is None:
                break
            run = byte + run
        pending = len(unfinished(run))
        if not pending or not _is_text(run[: len(run) - pending]):
            return ids, text
        before = seen[: len(seen) - len(run)]
        shown = str(self._tokenizer.decode(before, skip_special_tokens=skip_special_tokens))
        return before + seen[len(seen) - pending :], shown

    def _spelled(self, token_id: int) -> bytes:
        """A token of a byte-level vocabulary; one that is not spelled in its alphabet is text."""
        return token_bytes(str(self._tokenizer.id_to_token(token_id)))

    def _fallback_byte(self, token_id: int) -> bytes | None:
        """The byte of a token such as `<0xE2>`; None for any other."""
        found = _FALLBACK.fullmatch(str(self._tokenizer.id_to_token(token_id)))
        return None if found is None else bytes([int(found[1], 16)])


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
