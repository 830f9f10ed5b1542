"""Eve, Fay, Gil and Hal at noon: what the pages of this phase run, so that the pages show results only.

Eve asks "Why now?" and wants 20 tokens of answer. Before step 4 come Fay and Gil, with a question each
about the same document, and Hal, with something short. A block holds 4 tokens, a step computes at most
16, three people may run at once. With the token that begins a text the prompts have 9, 47, 48 and 9.

The pages import this module by its name: start Python in this folder.

    python phase-03-scheduler/noon.py          the run, step by step
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts
from mini_vllm.trace import TraceRecorder
from mini_vllm.trace.types import StepTrace

DOCUMENT = "A scheduler decides who runs in each step."
PROMPTS = {
    "eve": "Why now?",
    "fay": f"{DOCUMENT} So?",
    "gil": f"{DOCUMENT} Who?",
    "hal": "The seat",
}
WANTED = {"eve": 20, "fay": 6, "gil": 6, "hal": 5}
COMES = {"eve": 1, "fay": 4, "gil": 4, "hal": 4}
"""The step before which each asks."""
BLOCKS, BLOCK_SIZE = 19, 4


def greedy(num_tokens: int) -> SamplingParams:
    """The likeliest token each time, and exactly `num_tokens` of them."""
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


def new_engine(parts: EngineParts | None = None, **settings: Any) -> LLMEngine:
    """An engine with nineteen usable blocks of 4 tokens, 16 tokens per step and three slots."""
    given: dict[str, Any] = {
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": BLOCKS + 1,  # block 0 is the null block, which nobody gets
        "max_model_len": 96,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 3,
    }
    return LLMEngine(config=EngineConfig(**(given | settings)), parts=parts or EngineParts())


def run(engine: LLMEngine, priorities: Mapping[str, int] | None = None) -> list[StepTrace]:
    """The four, each when they come, until the last token. Returns every step."""
    recorder = TraceRecorder(engine)
    due = list(PROMPTS)
    while due or engine.has_unfinished_requests():
        while due and COMES[due[0]] == len(recorder.steps) + 1:
            name = due.pop(0)
            priority = (priorities or {}).get(name, 0)
            engine.add_request(name, PROMPTS[name], greedy(WANTED[name]), priority=priority)
        engine.step()
    return recorder.steps


@functools.cache
def noon(**settings: Any) -> tuple[StepTrace, ...]:
    """The run of the guide, with other settings if some are named; each made once."""
    return tuple(run(new_engine(**settings)))


def got(step: StepTrace, name: str) -> int:
    """How many tokens a step computes for somebody."""
    return sum(part.num_scheduled_tokens for part in step.scheduled if part.request_id == name)


def show(first: int = 1, last: int = 99, steps: tuple[StepTrace, ...] | None = None) -> None:
    """Print who gets how many tokens in steps `first` to `last`, and the free blocks after each."""
    rows = [["step", *PROMPTS, "sum", "free"]]
    for step in (noon() if steps is None else steps)[first - 1 : last]:
        tokens = [got(step, name) for name in PROMPTS]
        free = BLOCKS - step.blocks_in_use
        rows.append(
            [str(step.index), *(str(n or ".") for n in tokens), str(sum(tokens)), str(free)]
        )
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        line = (cell.rjust(width) for cell, width in zip(row, wide, strict=True))
        print("  ".join(line))


def grid(first: int, last: int) -> None:
    """Print who gets how many tokens in steps `first` to `last`, a row each: `-` waits, `x` is preempted."""
    print("step " + "".join(f"{number:>3}" for number in range(first, last + 1)))
    for name in PROMPTS:
        ends = max(step.index for step in noon() if got(step, name))
        cells = []
        for step in noon()[first - 1 : last]:
            waits = "x" if name in step.preempted else "-"
            cells.append(str(got(step, name) or (waits if step.index <= ends else "")))
        print(f"{name}  " + "".join(f"{cell:>3}" for cell in cells).rstrip())


def beside_eve(first: int = 1, last: int = 10, **settings: Any) -> list[int]:
    """The tokens that each of these steps computes for everybody; Eve gets one of hers in each."""
    return [sum(got(step, name) for name in PROMPTS) for step in noon(**settings)[first - 1 : last]]


def ledger(name: str, *numbers: int) -> None:
    """Print the two counters of somebody before some steps, and what each step gives."""
    print("step  computed  tokens  lacks  gets")
    tokens = len(prompt_ids(name))
    for step in noon():
        for part in step.scheduled:
            if part.request_id != name:
                continue
            if step.index in numbers:
                computed = part.num_computed_tokens
                row = (step.index, computed, tokens, tokens - computed, part.num_scheduled_tokens)
                print("{:>4}  {:>8}  {:>6}  {:>5}  {:>4}".format(*row))
            tokens += len(part.new_token_ids)


def prompt_ids(name: str) -> list[int]:
    tokenizer = new_engine().tokenizer
    assert tokenizer is not None
    return tokenizer.encode(PROMPTS[name])


def why(name: str, *numbers: int) -> None:
    """Print why somebody got what they got, or nothing, in some steps."""
    for number in numbers:
        print(f"{number:>2}  {noon()[number - 1].reason(name)}")


def first_tokens(steps: tuple[StepTrace, ...] | None = None) -> dict[str, int]:
    """The step that brings each the first token of the answer."""
    found: dict[str, int] = {}
    for step in noon() if steps is None else steps:
        for part in step.scheduled:
            if part.new_token_ids:
                found.setdefault(part.request_id, step.index)
    return found


def computed(name: str, **settings: Any) -> list[int]:
    """The tokens of somebody that each step computes; steps that compute none are left out."""
    return [n for step in noon(**settings) if (n := got(step, name))]


def with_priorities(**priorities: int) -> tuple[StepTrace, ...]:
    """The run under the policy `priority`; whoever is not named has 0."""
    return tuple(run(new_engine(scheduling_policy="priority"), priorities))


def eve_stops(async_scheduling: bool) -> tuple[int, int]:
    """Eve alone, with the ninth token of her answer as a stop token: tokens computed, tokens read."""
    answer = [n for step in noon() for part in step.scheduled[:1] for n in part.new_token_ids]
    engine = new_engine(async_scheduling=async_scheduling)
    recorder = TraceRecorder(engine)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    params.stop_token_ids = [answer[8]]
    engine.add_request("eve", PROMPTS["eve"], params)
    read = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            read = len(output.outputs[0].token_ids)
    return sum(got(step, "eve") for step in recorder.steps), read


if __name__ == "__main__":
    show()
