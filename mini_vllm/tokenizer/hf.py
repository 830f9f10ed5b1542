"""A `tokenizer.json` that is no byte-level BPE, through the `tokenizers` library (extra
`hf`).

Imported only where it is needed: the shipped checkpoint runs without the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.config.model import CheckpointError


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
                f"{path} uses {reason}, which needs the tokenizers library: pip install "
                f"'mini-vllm[hf]'"
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

    def stream(self, skip_special_tokens: bool, prompt: Sequence[int]) -> HfStream:
        """See `Tokenizer.stream`."""
        return HfStream(self._tokenizer, skip_special_tokens, prompt)


class HfStream:
    """`TokenStream` over the library's `DecodeStream`, with vLLM's way out when it loses its
    place (`vllm/v1/engine/detokenizer.py:223 FastIncrementalDetokenizer._protected_step`): start
    afresh at the current token."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool, prompt: Sequence[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._new = DecodeStream
        self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=skip_special_tokens)
        self._held: list[int] = []

    def step(self, token_id: int) -> str:
        """See `TokenStream.step`."""
        self._held.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception as error:
            if not str(error).startswith("Invalid prefix encountered"):
                raise
            self._stream = self._new(skip_special_tokens=self._skip)
            text = self._stream.step(self._tokenizer, token_id)
        if text:
            self._held = []
        return text or ""

    def finish(self, errors: str = "ignore") -> str:
        """See `TokenStream.finish`."""
        held, self._held = self._held, []
        return str(self._tokenizer.decode(held, self._skip)) if errors == "replace" else ""
