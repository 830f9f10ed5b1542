"""LangChain's `bind_tools`, and `with_structured_output` by a function call."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from list_end import LIST_END
from ticket import MAIL, MODEL, URL, Ticket, check

model = ChatOpenAI(
    model=MODEL, base_url=URL, api_key="none", temperature=0, max_tokens=200, max_retries=0,
    logit_bias=LIST_END,
)  # fmt: skip
for choice in ("required", "Ticket"):
    bound = model.bind_tools([Ticket], tool_choice=choice)
    (call,) = bound.invoke(MAIL).tool_calls
    assert call["name"] == "Ticket"
    check(choice, call["args"])
    whole, *pieces = bound.stream(MAIL)
    for piece in pieces:
        whole += piece
    (call,) = whole.tool_calls
    check(f"{choice}, streamed", call["args"])
asking = model.with_structured_output(Ticket, method="function_calling")
check("function_calling", asking.invoke(MAIL))
answer = model.bind_tools([Ticket]).invoke(MAIL)  # auto: the tiny model calls nothing
assert not answer.tool_calls
assert answer.content
