"""LiteLLM, by the provider for any OpenAI-like server and by the one for vLLM's."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its prices need no network

import litellm
from ticket import MESSAGES, SCHEMA, URL, Ticket, check

schema = {"name": "ticket", "schema": SCHEMA, "strict": True}
for provider in ("openai", "hosted_vllm"):
    given = {
        "model": f"{provider}/tiny-llama", "api_base": URL, "api_key": "none", "messages": MESSAGES,
        "temperature": 0, "max_tokens": 200, "num_retries": 0,
    }  # fmt: skip
    for name, format in (
        ("json_schema", {"type": "json_schema", "json_schema": schema}),
        ("a model", Ticket),
    ):
        answer = litellm.completion(**given, response_format=format)
        check(f"{provider}, {name}", answer.choices[0].message.content)
    answer = litellm.completion(**given, response_format={"type": "json_object"})
    assert answer.choices[0].message.content.startswith("{")
