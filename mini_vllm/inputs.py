"""The forms of a prompt that have a name (`vllm/inputs/llm.py`).

A prompt may also be a plain string or a list of token ids. Left out: embeddings, pictures and sound,
encoder and decoder prompts.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A text to be tokenized (`vllm/inputs/llm.py:99 TextPrompt`).

    `cache_salt`: only requests with the same salt share cached prefixes.
    """

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """Token ids (`vllm/inputs/llm.py:106 TokensPrompt`); `prompt` is their text, if it is known."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
