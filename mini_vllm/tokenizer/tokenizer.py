"""Text to token ids and back, from a checkpoint's `tokenizer.json`.

Byte-level BPE is done in `byte_level_bpe.py`, so that the shipped model needs no package. Any
other `tokenizer.json` goes through the `tokenizers` library (`hf.py`, extra
`hf`). Streams mirror vLLM's `FastIncrementalDetokenizer`
(`vllm/v1/engine/detokenizer.py:167 FastIncrementalDetokenizer`): text whose last character may
still be incomplete is held back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mini_vllm.config.checks import CheckpointError
from mini_vllm.model_loader import read_json
from mini_vllm.tokenizer.byte_level_bpe import ByteLevelBPE, why_not_byte_level
from mini_vllm.tokenizer.check import (
    check_byte_level,
    check_shape,
    special_tokens,
)


class TokenStream(Protocol):
    """Incremental detokenisation of one request."""

    def step(self, token_id: int) -> str:
        """Take one id; return the text that it completes, possibly empty."""
        ...

    def finish(self, errors: str = "ignore") -> str:
        """End the stream.

        The held bytes are dropped, as vLLM drops them, or, with `errors="replace"`, returned with
        U+FFFD where they are no UTF-8.
        """
        ...


class _Codec(Protocol):
    """The half of `Tokenizer` that depends on what does the work: this module or the library."""

    vocab_size: int

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...
    def id_to_piece(self, token_id: int) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def id_to_token(self, token_id: int) -> str | None: ...
    def token_to_id(self, token: str) -> int | None: ...
    def stream(self, skip_special_tokens: bool, prompt: Sequence[int]) -> TokenStream: ...


class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        vocab_size: ids that have a token, added tokens included.
        bos_token_id, eos_token_id: ids of the tokens that `tokenizer_config.json` names; None
            where it names none.
        bos_token, eos_token: their texts.
    """

    def __init__(
        self,
        codec: _Codec,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
    ) -> None:
        self._codec = codec
        self._folder: Path | None = None
        self.bos_token: str | None = None
        self.eos_token: str | None = None
        self.vocab_size = codec.vocab_size
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read `tokenizer.json` and, for the names of bos and eos, `tokenizer_config.json`.

        Raises:
            CheckpointError: no `tokenizer.json`, one that is corrupt, or one that needs the
                `tokenizers` library where that is not installed.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"model folder {str(folder)!r} has no tokenizer.json")
        data = read_json(path)
        codec: _Codec
        try:
            check_shape(data)
            reason = why_not_byte_level(data)
            if reason is None:
                check_byte_level(data)
                codec = ByteLevelBPE(data)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        except (LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is no tokenizer.json: {type(error).__name__} {error}"
            ) from error
        if reason is not None:
            from mini_vllm.tokenizer.hf import HfCodec

            codec = HfCodec(path, reason)
        names: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config = read_json(folder / name)
                try:
                    names.update(special_tokens(config))
                except CheckpointError as error:
                    raise CheckpointError(f"{folder / name}: {error}") from error
        ids = {k: None if v is None else codec.token_to_id(v) for k, v in names.items()}
        made = cls(codec, ids.get("bos_token"), ids.get("eos_token"))
        made.bos_token, made.eos_token = names.get("bos_token"), names.get("eos_token")
        made._folder = folder
        return made

    def read_file(self) -> str:
        """The text of `tokenizer.json`, for a library that reads tokenizers itself.

        Raises:
            ValueError: this tokenizer came from no folder.
        """
        if self._folder is None:
            raise ValueError("this tokenizer was made from no folder, so it has no tokenizer.json")
        return (self._folder / "tokenizer.json").read_text(encoding="utf-8")

    @functools.cached_property
    def chat_template(self) -> str | None:
        """The checkpoint's Jinja template for chats; None where it has none.

        Raises:
            CheckpointError: the file has something else in its place.
        """
        return None if self._template is None else self._template[0]

    @functools.cached_property
    def _template(self) -> tuple[str, dict[str, Any]] | None:
        # Read when a chat asks: without chats no valid template is needed.
        if self._folder is None:
            return None
        from mini_vllm.tokenizer.chat_template import read_template

        return read_template(self._folder)

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. Special tokens written out in the text become their ids, as in Hugging
        Face.
        """
        return self._codec.encode(text, add_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of `ids`, with special tokens written out unless they are to be skipped, as in
        transformers. Bytes that are no UTF-8 come out as U+FFFD, ids without a token as nothing.
        """
        return self._codec.decode(list(ids), skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str | None]:
        """The tokens as they stand in the vocabulary, `Ġthe` for ` the`; None for an id without
        one.
        """
        return [self._codec.id_to_token(token_id) for token_id in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **kwargs: Any,
    ) -> Any:
        """A chat as the model reads it, by the checkpoint's template, as in transformers.

        Args:
            conversation: messages, each a dict with `role` and `content`.
            chat_template: Jinja in place of the checkpoint's.
            add_generation_prompt: end with what begins an assistant's turn.
            continue_final_message: leave the last message open.
            tokenize: ids instead of text.
            return_dict: the ids as `input_ids` of a dict, beside an `attention_mask` of ones.
            kwargs: variables for the template.

        Raises:
            ValueError: no template, or messages that it refuses.
            ImportError: jinja2 is not installed.
        """
        from mini_vllm.tokenizer.chat_template import RESERVED, ChatTemplate

        source = chat_template or self.chat_template
        if source is None:
            raise ValueError("this tokenizer has no chat template: give one as chat_template=")
        variables = {} if self._template is None else self._template[1]
        text = ChatTemplate(source, variables).render(
            conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **{name: value for name, value in kwargs.items() if name not in RESERVED},
        )
        if not tokenize:
            return text
        ids = self.encode(text, add_special_tokens=False)  # the template writes them out
        return {"input_ids": ids, "attention_mask": [1] * len(ids)} if return_dict else ids

    def id_to_piece(self, token_id: int) -> str:
        """One id for the eye: its text, `<0xE2>` for each byte that is no text alone, escapes for
        controls.

        Raises:
            ValueError: the id has no token.
        """
        return self._codec.id_to_piece(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id adds to the output, a special token's spelling included; none for an id
        without a token."""
        return self._codec.token_bytes(token_id)

    def stream(
        self, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()
    ) -> TokenStream:
        """A stream for the output of one request.

        Args:
            skip_special_tokens: leave special tokens out of the text.
            prompt_token_ids: what came before. It matters where a token's text depends on the one
                to its left (SentencePiece spaces) and where the prompt ends inside a character.
        """
        return self._codec.stream(skip_special_tokens, prompt_token_ids)
