"""Instructor in its three JSON modes."""

from __future__ import annotations

import instructor
import openai
from ticket import MESSAGES, MODEL, URL, Ticket, check

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.MD_JSON):
    asking = instructor.from_openai(client, mode=mode)
    try:
        answer = asking.chat.completions.create(
            model=MODEL, messages=list(MESSAGES), response_model=Ticket, temperature=0, max_tokens=200,
            max_retries=0, extra_body={"truncate_prompt_tokens": 500},
        )  # fmt: skip
    except Exception as error:
        # Only the first mode sends the schema: the tiny model does not follow it by itself.
        if mode is instructor.Mode.JSON_SCHEMA or "Error code" in str(error):
            raise
        print(f"{mode.name}: {type(error).__name__}: {str(error)[:90]!r}")
    else:
        check(mode.name, answer)
