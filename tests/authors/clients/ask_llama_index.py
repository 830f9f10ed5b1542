"""LlamaIndex's structured output."""

from __future__ import annotations

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from ticket import MAIL, MODEL, URL, Ticket, check

model = OpenAILike(
    model=MODEL, api_base=URL, api_key="none", temperature=0, max_tokens=200, is_chat_model=True,
    should_use_structured_outputs=True, max_retries=0, context_window=1024,
)  # fmt: skip
check("structured_predict", model.as_structured_llm(Ticket).chat([ChatMessage(content=MAIL)]).raw)
