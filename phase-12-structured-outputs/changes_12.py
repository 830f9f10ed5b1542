"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-12-structured-outputs/changes_12.py {ends,forced}
"""

from __future__ import annotations

import sys
from typing import Any

from desk import PART, TICKET

from mini_vllm import LLM, SamplingParams, StructuredOutputsParams


def run(rule: dict[str, Any], **settings: Any) -> tuple[int, str, str | None]:
    """The steps that a greedy answer with this rule takes, its text, and why it ends."""
    config = {"backend": "native", "disable_any_whitespace": True}
    engine = LLM(structured_outputs_config=config, **settings).llm_engine
    core: Any = engine.engine_core
    steps = 0

    def count(record: Any) -> None:
        nonlocal steps
        steps += bool(record.scheduler_output.num_scheduled_tokens)

    core.step_observers.append(count)
    params = SamplingParams(
        temperature=0, max_tokens=80, structured_outputs=StructuredOutputsParams(**rule)
    )
    engine.add_request("bo", "Ticket: ", params)
    outputs: list[Any] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    answer = outputs[-1].outputs[0]
    return steps, answer.text, answer.finish_reason


def ends() -> None:
    """A part number."""
    print(*run(PART))


def forced() -> None:
    """A ticket, with up to four drafts in a step."""
    n_gram = {"method": "ngram", "num_speculative_tokens": 4}
    print(
        *run(TICKET, speculative_config=n_gram | {"prompt_lookup_min": 2, "prompt_lookup_max": 3})
    )


if __name__ == "__main__":
    {"ends": ends, "forced": forced}[sys.argv[1]]()
