"""pydantic-ai: an output by a tool call, its default."""

from __future__ import annotations

from list_end import LIST_END
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from ticket import MAIL, MODEL, URL, Ticket, check

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
settings = {"temperature": 0, "max_tokens": 200, "logit_bias": LIST_END}
check("a tool", Agent(model, output_type=Ticket, model_settings=settings).run_sync(MAIL).output)
