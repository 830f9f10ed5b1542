"""Log probabilities in the two shapes that OpenAI's API has for them.

Mirrors `_create_completion_logprobs`
(`vllm/entrypoints/openai/completion/serving.py:605 OpenAIServingCompletion._create_completion_logprobs`)
and `_create_chat_logprobs`
(`vllm/entrypoints/openai/chat_completion/serving.py:1467 OpenAIServingChat._create_chat_logprobs`).
JSON has no minus infinity: -9999 stands for it, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.outputs import Logprob, PromptLogprobs
from mini_vllm.tokenizer import Tokenizer

_LEAST = -9999.0


class LogprobFormatter:
    """Writes logprobs for one request.

    Args:
        tokenizer: gives the text of tokens that no logprob names.
        as_token_ids: write tokens as `token_id:N`, for those that are no text by themselves.
    """

    def __init__(self, tokenizer: Tokenizer, as_token_ids: bool) -> None:
        self.tokenizer = tokenizer
        self.as_token_ids = as_token_ids

    def _token(self, token_id: int, logprob: Logprob | None) -> str:
        if self.as_token_ids:
            return f"token_id:{token_id}"
        if logprob is not None and logprob.decoded_token is not None:
            return logprob.decoded_token
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def completion(
        self,
        token_ids: Sequence[int],
        positions: Sequence[dict[int, Logprob] | None],
        count: int,
        text_offset: int = 0,
    ) -> dict[str, Any]:
        """`logprobs` of a completion: four parallel lists, one entry a token.

        Args:
            token_ids: the tokens.
            positions: what is known at each; None where nothing predicts it (a prompt's first).
            count: how many of the likeliest were asked for. The token itself stands first, so up to
                `count + 1` are given.
            text_offset: characters of text before the first token.
        """
        tokens: list[str] = []
        token_logprobs: list[float | None] = []
        top_logprobs: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, position in zip(token_ids, positions, strict=True):
            offsets.append(text_offset)
            if position is None:
                tokens.append(self._token(token_id, None))
                token_logprobs.append(None)
                top_logprobs.append(None)
            else:
                own = position[token_id]
                tokens.append(self._token(token_id, own))
                token_logprobs.append(max(own.logprob, _LEAST))
                listed = list(position.items())[: count + 1 if count >= 0 else None]
                top_logprobs.append({self._token(i, p): max(p.logprob, _LEAST) for i, p in listed})
            text_offset += len(tokens[-1])
        return {
            "text_offset": offsets,
            "token_logprobs": token_logprobs,
            "tokens": tokens,
            "top_logprobs": top_logprobs,
        }

    def chat(
        self, token_ids: Sequence[int], positions: Sequence[dict[int, Logprob]], count: int
    ) -> dict[str, Any]:
        """`logprobs` of a chat: one object a token, with `top_logprobs` of exactly `count` (-1:
        all that there are)."""
        content = []
        for token_id, position in zip(token_ids, positions, strict=True):
            listed = list(position.items())[: count if count >= 0 else None]
            entry = self._chat_entry(token_id, position[token_id])
            entry["top_logprobs"] = [self._chat_entry(i, p) for i, p in listed]
            content.append(entry)
        return {"content": content}

    def _chat_entry(self, token_id: int, logprob: Logprob) -> dict[str, Any]:
        token = self._token(token_id, logprob)
        return {
            "token": token,
            "logprob": max(logprob.logprob, _LEAST),
            "bytes": list((logprob.decoded_token or token).encode("utf-8", "replace")),
        }


def prompt_logprobs(positions: PromptLogprobs | None) -> list[dict[str, Any] | None] | None:
    """`prompt_logprobs` of an answer, vLLM's own field: token id to logprob, rank and text."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": max(p.logprob, _LEAST),
                "rank": p.rank,
                "decoded_token": p.decoded_token,
            }
            for token_id, p in position.items()
        }
        for position in positions
    ]
