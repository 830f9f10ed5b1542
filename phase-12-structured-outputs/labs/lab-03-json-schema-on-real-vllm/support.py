"""What the lab's tests and scripts share: Bo's schemas, and what real vLLM did with them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parent / "recorded.json"


def an_object(**properties: Any) -> dict[str, Any]:
    """An object that has these properties, all of them and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TICKET = an_object(
    item={"type": "string", "maxLength": 12}, urgent={"type": "boolean"}, days={"type": "integer"}
)
BOUNDED = copy.deepcopy(TICKET)
BOUNDED["properties"]["days"] |= {"minimum": 0, "maximum": 99}
RANGE = {"type": "integer", "minimum": -5, "maximum": 130}

SCHEMAS: dict[str, dict[str, Any]] = {
    "ticket": TICKET,
    "bounded": BOUNDED,
    "kind": {"enum": ["repair", "return", "question"]},
    "range": RANGE,
    "flag": {"type": "boolean"},
    "mail": an_object(
        kind={"enum": ["repair", "return", "question"]},
        ticket=an_object(days=RANGE, urgent={"type": "boolean"}),
        level={"enum": [1, 12, 123]},
    ),
    "note": an_object(text={"type": "string"}),
    "from day 5": an_object(days={"type": "integer", "minimum": 5}),
    "initials": an_object(
        first={"type": "string", "maxLength": 1}, last={"type": "string", "maxLength": 2}
    ),
}
"""`ticket` is Bo's, `bounded` the same with days from 0 to 99."""


@dataclass(frozen=True)
class Asked:
    """One request to real vLLM.

    Attributes:
        setting: `auto`, or `xgrammar` or `guidance` with `disable_any_whitespace`.
        schema: a name in SCHEMAS.
        bias: a character that `logit_bias` prefers; "": none.
    """

    setting: str
    schema: str
    max_tokens: int
    seed: int = 0
    bias: str = ""

    def words(self) -> str:
        more = f", {self.bias!r} preferred" if self.bias else ""
        return (
            f"{self.setting}, {self.schema}, max_tokens {self.max_tokens}, seed {self.seed}{more}"
        )


FIRST_BYTE = 8
"""A token of the tiny Llama is a byte, plus 8. Below are special ones, of which 2 ends the text."""

REQUESTS = (
    *(Asked("auto", "ticket", n, seed) for n in (40, 160) for seed in (1, 2)),
    Asked("auto", "bounded", 400, 2),
    *(Asked("xgrammar", "ticket", n, 1) for n in (40, 160)),
    *(Asked("xgrammar", "bounded", 90, seed) for seed in (1, 2, 3, 4)),
    Asked("xgrammar", "bounded", 52, 1),
    *(Asked("xgrammar", "mail", 120, seed) for seed in (1, 2, 3, 4)),
    *(Asked("xgrammar", "initials", 60, seed) for seed in (1, 2, 3)),
    *(Asked("xgrammar", "range", 9, seed) for seed in (1, 2, 3)),
    Asked("xgrammar", "range", 1, 3),
    *(Asked("xgrammar", "kind", 9, seed) for seed in (1, 2)),
    Asked("xgrammar", "bounded", 90, 1, "\t"),
    Asked("xgrammar", "bounded", 90, 1, '"'),
    Asked("xgrammar", "bounded", 90, 2, "}"),
    Asked("xgrammar", "mail", 120, 1, "}"),
    Asked("xgrammar", "initials", 60, 1, '"'),
    *(Asked("guidance", "bounded", 120, seed) for seed in (1, 2)),
    Asked("guidance", "ticket", 120, 1),
    Asked("guidance", "bounded", 120, 1, "\t"),
)

KEYS: tuple[tuple[str, str], ...] = (
    ("json", json.dumps(BOUNDED)),
    ("json", json.dumps(BOUNDED)),
    ("json", json.dumps(TICKET)),
    ("json", json.dumps(BOUNDED, separators=(",", ":"))),
    ("json", json.dumps(dict(reversed(BOUNDED.items())))),
    ("json", json.dumps(BOUNDED)),
    ("regex", "[A-Z]{2}-[0-9]{3,4}"),
    ("json_object", ""),
    ("json", '{"type": "object"}'),
    ("regex", "[A-Z]{2}-[0-9]{3,4}"),
    ("regex", "([A-Z]{2}-[0-9]{3,4})"),
    ("json", '{"type":"object"}'),
    ("json_object", ""),
)
"""Rules of an engine's requests, one after another, as it hands them to the backend: kind and text."""


@cache
def recorded() -> dict[str, Any]:
    """What real vLLM 0.22.1 did.

    `lengths`: by schema and backend the shortest and the longest document. `outputs`: of each of REQUESTS
    what it returned, and how many tokens each step's row allowed. `compiled`: of each of KEYS by how much
    xgrammar's cache grew. `ms`: by backend, a schema compiled for the first time and again. `steps`: of a
    batch some steps' rows.
    """
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


def outputs() -> list[tuple[Asked, dict[str, Any]]]:
    """The requests, each with its output."""
    return list(zip(REQUESTS, recorded()["outputs"], strict=True))


def complete_in_xgrammars_style(asked: Asked, output: dict[str, Any]) -> bool:
    """Whether an output is a document on which `forced` can be asked: complete, of bytes alone."""
    bytes_alone = all(token >= FIRST_BYTE for token in output["tokens"][:-1])
    ended = output["finish_reason"] == "stop"
    return asked.setting == "xgrammar" and asked.bias != "\t" and ended and bytes_alone
