"""pydantic-ai: native output, by the schema, and prompted output, by `json_object`."""

from __future__ import annotations

from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from ticket import MAIL, MODEL, URL, Ticket, check

model = OpenAIChatModel(
    MODEL,
    provider=OpenAIProvider(base_url=URL, api_key="none"),
    profile=OpenAIModelProfile(supports_json_schema_output=True, supports_json_object_output=True),
)
settings = {"temperature": 0, "max_tokens": 200, "extra_body": {"truncate_prompt_tokens": 500}}
agent = Agent(model, output_type=NativeOutput(Ticket), model_settings=settings)
check("native", agent.run_sync(MAIL).output)
agent = Agent(model, output_type=PromptedOutput(Ticket), model_settings=settings)
try:
    check("prompted", agent.run_sync(MAIL).output)
except (
    UnexpectedModelBehavior
) as error:  # the tiny model does not follow a schema that it is only told
    print(f"prompted: {error}")
