"""OpenAI's own client: `response_format`, `parse`, `stream`, and vLLM's `structured_outputs`."""

from __future__ import annotations

import json
import re

import openai
from ticket import MESSAGES, MODEL, PART, SCHEMA, URL, Ticket, check

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
create = client.chat.completions.create
schema = {"name": "ticket", "schema": SCHEMA, "strict": True}
given = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 200}

answer = create(**given, response_format={"type": "json_schema", "json_schema": schema})
check("json_schema", answer.choices[0].message.content)
parsed = client.chat.completions.parse(**given, response_format=Ticket)
check("parse", parsed.choices[0].message.parsed)
with client.chat.completions.stream(**given, response_format=Ticket) as stream:
    for _ in stream:
        pass
    check("stream", stream.get_final_completion().choices[0].message.parsed)
answer = create(**given, response_format={"type": "json_object"})
if answer.choices[0].finish_reason == "stop":
    json.loads(answer.choices[0].message.content)
assert answer.choices[0].message.content.startswith("{")
answer = create(**given, extra_body={"structured_outputs": {"regex": PART}})
assert re.fullmatch(PART, answer.choices[0].message.content)
two = create(
    **given | {"temperature": 1, "n": 2}, extra_body={"structured_outputs": {"json": SCHEMA}}
)
for choice in two.choices:
    check("n=2", choice.message.content)
text = (
    client.completions.create(
        model=MODEL,
        prompt="A part: ",
        max_tokens=20,
        extra_body={"structured_outputs": {"regex": PART}},
    )
    .choices[0]
    .text
)
assert re.fullmatch(PART, text)
for bad in ({"regex": "("}, {"json": {"type": "frog"}}, {"choice": []}, {}):
    try:
        create(**given, extra_body={"structured_outputs": bad})
        raise SystemExit(f"{bad} was not refused")
    except openai.BadRequestError as error:
        if error.param != "structured_outputs":
            raise
