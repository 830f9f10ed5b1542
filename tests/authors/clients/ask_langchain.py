"""LangChain's `with_structured_output`."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from ticket import MAIL, MODEL, SCHEMA, URL, Ticket, check

model = ChatOpenAI(
    model=MODEL, base_url=URL, api_key="none", temperature=0, max_tokens=200, max_retries=0
)
asking = model.with_structured_output(Ticket, method="json_schema")
check("json_schema", asking.invoke(MAIL))
named = {"title": "Ticket", "description": "What the help desk files.", **SCHEMA}
check("json_schema, a dict", model.with_structured_output(named, method="json_schema").invoke(MAIL))
check(
    "strict", model.with_structured_output(Ticket, method="json_schema", strict=True).invoke(MAIL)
)
*_, last = model.with_structured_output(Ticket, method="json_schema").stream(MAIL)
check("stream", last)
answer = model.bind(response_format={"type": "json_object"}).invoke(MAIL)
assert answer.content.startswith("{")
