"""The ticket that every client asks for. Its strings and numbers end, so the tiny model's output does."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

URL = sys.argv[1] + "/v1"
MODEL = "tiny-llama"
MAIL = "My toaster sparks. Please mend it, it is urgent."
MESSAGES: list[Any] = [{"role": "user", "content": MAIL}]
PART = r"[A-Z]{2}-[0-9]{3,4}"


class Ticket(BaseModel):
    """What the help desk files."""

    item: Annotated[str, Field(max_length=12)]
    kind: Literal["repair", "return", "question"]
    urgent: bool
    days: Annotated[int, Field(ge=0, le=30)]


SCHEMA = Ticket.model_json_schema()


def check(name: str, answer: object) -> None:
    """Print what came, which must be a ticket."""
    if isinstance(answer, str):
        answer = json.loads(answer)
    ticket = answer if isinstance(answer, Ticket) else Ticket.model_validate(answer)
    print(f"{name}: {ticket.model_dump_json()}")
