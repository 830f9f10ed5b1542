"""Rules, and what is wrong without one of the engine's own: set-up for the deep dive.

Each function runs the shipped model with one line of the engine left out, and says what came of it.

    python phase-12-structured-outputs/broken_rules.py
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from time import sleep
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.request import Request
from mini_vllm.core.sched.admission import Admission, AdmissionGate
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.structured_output.admission import GrammarAdmission
from mini_vllm.structured_output.backend_native import NativeGrammar
from mini_vllm.structured_output.scheduling import GrammarScheduling
from mini_vllm.structured_output.utils import GrammarOutput
from mini_vllm.utils.structured_params import StructuredOutputsParams

PART = "[A-Z]{2}-[0-9]{3,4}"
PROMPT = "A part "


def start(**settings: Any) -> LLM:
    return LLM(structured_outputs_config={"backend": "native"}, **settings)


def bind(regex: str | None = PART, max_tokens: int = 16) -> SamplingParams:
    """Greedy, with this rule; None: without one."""
    rule = None if regex is None else StructuredOutputsParams(regex=regex)
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=rule)


def write(llm: LLM, *params: SamplingParams, prompt: str = PROMPT) -> list[tuple[str, str | None]]:
    """What each request of one batch writes, and why it ends."""
    outputs = llm.generate([prompt] * len(params), list(params), use_tqdm=False)
    return [(o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs]


# --- 1: what the check must refuse ---


def misread() -> str:
    r"""A part number with `\A` before it, elsewhere a text's start; the escape stands for its letter."""
    return write(start(), bind("A" + PART))[0][0]


# --- 2: who waits for a grammar ---


def last_steps(barrier: bool = False) -> dict[str, int]:
    """Bo's rule takes ten steps to compile; behind him comes Gil, with 4 tokens and no rule.

    Returns the step of each one's last token.

    Args:
        barrier: a request that waits for its grammar holds up those behind it.
    """
    engine = start().llm_engine
    asked = 0

    def is_ready(self: GrammarAdmission, request: Request) -> bool:
        nonlocal asked
        asked += 1
        while asked > 10 and not request.structured_output_request.is_grammar_ready:
            sleep(0.001)
        return asked > 10

    steps = 0
    found: dict[str, int] = {}
    with ExitStack() as patches:
        patches.enter_context(patch.object(GrammarAdmission, "is_ready", is_ready))
        if barrier:
            patches.enter_context(patch.object(AdmissionGate, "check", _stop))
        engine.add_request("bo", PROMPT, bind())
        engine.add_request("gil", PROMPT, bind(None, 4))
        while engine.has_unfinished_requests():
            steps += 1
            found |= {output.request_id: steps for output in engine.step() if output.finished}
    return found


_check = AdmissionGate.check


def _stop(self: AdmissionGate, request: Request) -> Admission:
    return Admission.ADMIT if _check(self, request) is Admission.ADMIT else Admission.STOP


# --- 3: when is a grammar terminated? ---


def part_number(at_match: bool = False) -> tuple[str, str | None]:
    """A part number; `at_match`: a grammar counts as terminated once its rule is matched."""
    matched = patch.object(
        NativeGrammar, "is_terminated", lambda self: self._automaton.accepts(self.state)
    )
    with matched if at_match else nullcontext():
        return write(start(), bind())[0]


# --- 4: which requests have a row ---


def count_rows(chunks_too: bool = False) -> tuple[int, int]:
    """A prompt of 140 tokens in chunks of 16: how many rows were filled, for how many sampled tokens.

    Args:
        chunks_too: a chunk of the prompt has a row, too.
    """
    filled = 0
    fill = NativeGrammar.fill_bitmask

    def count(self: NativeGrammar, *args: Any) -> None:
        nonlocal filled
        filled += 1
        fill(self, *args)

    with ExitStack() as patches:
        patches.enter_context(patch.object(NativeGrammar, "fill_bitmask", count))
        if chunks_too:
            patches.enter_context(patch.object(GrammarScheduling, "_get_bound", _get_all))
        llm = start(max_num_batched_tokens=16, max_num_seqs=4)
        [output] = llm.generate([PROMPT * 20], [bind()], use_tqdm=False)
    return filled, len(output.outputs[0].token_ids)


def _get_all(self: GrammarScheduling, scheduler_output: SchedulerOutput) -> dict[str, Any]:
    return {
        req_id: self.scheduler.requests[req_id].structured_output_request
        for req_id in scheduler_output.num_scheduled_tokens
    }


# --- 5: whose row is it? ---


def free_and_bound(in_order: bool = True) -> dict[str, tuple[str, str | None]]:
    """Gil, without a rule, has begun when Bo comes; `in_order` False: the first row is the first request's.

    Returns what each writes, and why it ends.
    """
    engine = start().llm_engine
    found: dict[str, tuple[str, str | None]] = {}
    with nullcontext() if in_order else patch.object(GrammarOutput, "apply", _apply_from_the_top):
        engine.add_request("gil", PROMPT, bind(None, 8))
        engine.step()
        engine.add_request("bo", PROMPT, bind())
        core: Any = engine.engine_core
        while not core.scheduler.requests["bo"].structured_output_request.is_grammar_ready:
            sleep(0.001)
        while engine.has_unfinished_requests():
            for output in engine.step():
                found[output.request_id] = output.outputs[0].text, output.outputs[0].finish_reason
    return found


def _apply_from_the_top(
    self: GrammarOutput, logits: NDArray[np.float32], req_ids: Iterable[str]
) -> NDArray[np.float32]:
    self.structured_output_request_ids = list(req_ids)[: len(self.grammar_bitmask)]
    return _apply(self, logits, req_ids)


_apply = GrammarOutput.apply


# --- 6: which drafts are scheduled ---


def with_drafts(cut: bool = True) -> tuple[str, str | None]:
    """A part number with up to three drafts in a step; `cut` False: all of them are scheduled."""
    n_gram = {"method": "ngram", "num_speculative_tokens": 3}
    keep_all = patch.object(GrammarScheduling, "keep_allowed", lambda self, request, ids: ids)
    with nullcontext() if cut else keep_all:
        llm = start(speculative_config=n_gram | {"prompt_lookup_min": 1, "prompt_lookup_max": 2})
        return write(llm, bind(), prompt="Part IN-8024, part ")[0]


if __name__ == "__main__":
    print("misread:               ", misread())
    print("last steps:            ", last_steps())
    print("a barrier:             ", last_steps(barrier=True))
    print("a part number:         ", part_number())
    print("ends at the match:     ", part_number(at_match=True))
    print("rows, tokens:          ", count_rows())
    print("rows for chunks:       ", count_rows(chunks_too=True))
    print("free and bound:        ", free_and_bound())
    print("rows from the top:     ", free_and_bound(in_order=False))
    print("with drafts:           ", with_drafts())
    print("drafts that are not cut:", with_drafts(cut=False))
