"""`POST /v1/chat/completions/render` and `/v1/completions/render`: what the engine would get.

Mirrors `vllm/entrypoints/serve/render/serving.py:65 OpenAIServingRender`: the request is checked and
tokenized as ever, but not run. The answer is `GenerateRequest` of
`vllm/entrypoints/serve/disagg/protocol.py:62`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mini_vllm.entrypoints.openai.protocol import SamplingFields
from mini_vllm.entrypoints.openai.serving import EngineInput
from mini_vllm.sampling_params import SamplingParams

# As upstream leaves them out of its JSON: at these values, apart from those that are always there.
_ALWAYS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature")
_UNLESS_GREEDY = ("top_p", "min_p")
_WHERE_OTHER: dict[str, Any] = {
    "n": 1, "top_k": 0, "seed": None, "ignore_eos": False, "max_tokens": 16, "min_tokens": 0,
    "logprobs": None, "prompt_logprobs": None, "skip_special_tokens": True,
    "spaces_between_special_tokens": True, "include_stop_str_in_output": False, "allowed_token_ids": None,
    "extra_args": None,
}  # fmt: skip


def rendered(body: SamplingFields, entry: EngineInput) -> dict[str, Any]:
    """One engine request as plain data."""
    options = body.stream_options
    return {
        "request_id": entry.request_id.rpartition("-")[0],
        "token_ids": entry.prompt["prompt_token_ids"],
        "features": None,
        "sampling_params": _plain(entry.params),
        "model": body.model,
        "stream": bool(body.stream),
        "stream_options": options.model_dump() if options is not None and body.stream else None,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
        "kv_transfer_params": None,
    }


def _plain(params: SamplingParams) -> dict[str, Any]:
    names = [*_ALWAYS, *(_UNLESS_GREEDY if params.temperature else ())]
    names += [name for name, value in _WHERE_OTHER.items() if getattr(params, name) != value]
    plain = {name: getattr(params, name) for name in names}
    if params.logit_bias is not None:
        plain["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    if params.structured_outputs is not None:
        plain["structured_outputs"] = asdict(params.structured_outputs)
    return plain | {
        "stop": params.stop,
        "stop_token_ids": params.stop_token_ids,
        "output_kind": params.output_kind.value,
        "skip_clone": True,
        "bad_words": params.bad_words,
        "skip_reading_prefix_cache": params.skip_reading_prefix_cache,
    }
