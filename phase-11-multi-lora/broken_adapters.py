"""Adapters, and what is wrong without one of their rules: set-up for the deep dive.

Each function runs the shipped model and the three shipped adapters with one rule left out, and says what
came of it.

    python phase-11-multi-lora/broken_adapters.py
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core import request as core_request
from mini_vllm.core.request import Request
from mini_vllm.core.sched.admission import Admission
from mini_vllm.lora.admission import LoRAAdmission
from mini_vllm.lora.layers import LinearWithLoRA
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.ops import LoRAMapping
from mini_vllm.lora.peft_helper import PEFTHelper
from mini_vllm.lora.request import LoRARequest

SHIPPED = DEFAULT_MODEL.parent / "tiny-llama-lora"
ADA, BO, CY = (
    LoRARequest(tenant, number, str(SHIPPED / style))
    for number, (tenant, style) in enumerate(
        (("ada", "snake"), ("bo", "telegram"), ("cy", "questions")), 1
    )
)
PROMPT = "The scheduler decides at every step "
BLOCKS = "Each request has a block table, and its blocks "
"""Both are more than two blocks of 16 tokens."""


def say(
    llm: LLM, *loras: LoRARequest | None, prompt: str = PROMPT, max_tokens: int = 32
) -> list[str]:
    """What each of them writes greedily after the same prompt, in one batch; None: without an adapter."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    prompts = [prompt] * len(loras)
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=list(loras))
    return [output.outputs[0].text for output in outputs]


def start(**settings: Any) -> LLM:
    return LLM(enable_lora=True, **settings)


# --- 1: what a file says of its adapter ---


def bo_writes(passed_over: bool = False) -> str:
    """Bo's text; `passed_over`: `use_rslora` is a key that the reader of his file does not know."""
    without = patch.object(PEFTHelper, "scaling", property(lambda self: self.lora_alpha / self.r))
    with without if passed_over else nullcontext():
        return say(start(), BO, prompt="Why ")[0]


# --- 2: who may pass at the gate ---


def last_steps(barrier: bool = False) -> dict[str, int]:
    """One slot. Ada writes 40 tokens; behind her come Bo with 4, and Gil, without an adapter, with 4.

    Returns the step of each one's last token.

    Args:
        barrier: who finds no slot holds up those who come after.
    """
    llm = start(max_loras=1)
    engine = llm.llm_engine
    for name, lora, count in (("ada", ADA, 40), ("bo", BO, 4), ("gil", None, 4)):
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        engine.add_request(name, PROMPT, params, lora_request=lora)
    steps = 0
    found: dict[str, int] = {}
    with patch.object(LoRAAdmission, "check", _stop) if barrier else nullcontext():
        while engine.has_unfinished_requests():
            steps += 1
            found |= {output.request_id: steps for output in engine.step() if output.finished}
    return found


_check = LoRAAdmission.check


def _stop(self: LoRAAdmission, request: Request) -> Admission:
    return Admission.ADMIT if _check(self, request) is Admission.ADMIT else Admission.STOP


def without_a_gate() -> str:
    """One slot, Ada and Bo together, and a gate that admits both."""
    with patch.object(LoRAAdmission, "check", lambda self, request: Admission.ADMIT):
        try:
            return str(say(start(max_loras=1), ADA, BO))
        except (AssertionError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"


# --- 4: what is in a slot ---


def after_ada(reset: bool = True) -> str:
    """One slot, which Ada had. Cy, who adapts q and v only, is next.

    Args:
        reset: False: a layer for which an adapter has nothing keeps what its slot held.
    """
    llm = start(max_loras=1)
    with nullcontext() if reset else _keeping():
        say(llm, ADA)
        return say(llm, CY)[0]


def _keeping() -> AbstractContextManager[Any]:
    fill = LinearWithLoRA.set_lora

    def set_lora(self: LinearWithLoRA, index: int, lora: LoRAModel) -> None:
        before = self.slots.get(index, [])
        fill(self, index, lora)
        here = {piece.start for piece in self.slots[index]}
        self.slots[index] += [piece for piece in before if piece.start not in here]

    return patch.object(LinearWithLoRA, "set_lora", set_lora)


# --- 5: which rows are whose ---


def rows_of(slots: Sequence[int | None], counts: Sequence[int]) -> dict[int, list[int]]:
    """By slot, the rows of a step whose requests have these slots and so many rows each."""
    mapping = LoRAMapping()
    mapping.set_rows(slots, counts)
    return {
        slot: list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        for slot, rows in mapping.groups.items()
    }


# --- 6: what a cached block's key holds ---


def after_the_base(key: bool = True) -> str:
    """What Cy writes after the same prompt was there without an adapter.

    Args:
        key: False: the keys of blocks hold tokens only.
    """
    llm = start()
    tokens_only = patch.object(core_request, "generate_block_hash_extra_keys", lambda *_: None)
    with nullcontext() if key else tokens_only:
        say(llm, None, prompt=BLOCKS)
        return say(llm, CY, prompt=BLOCKS)[0]


if __name__ == "__main__":
    print("Bo:                      ", repr(bo_writes()))
    print("Bo, alpha / r:           ", repr(bo_writes(passed_over=True)))
    print("last steps:              ", last_steps())
    print("a barrier:               ", last_steps(barrier=True))
    print("without a gate:          ", without_a_gate())
    print("Cy after Ada:            ", repr(after_ada()))
    print("a slot that is not reset:", repr(after_ada(reset=False)))
    print("rows:                    ", rows_of([1, None, 0, 1], [3, 2, 1, 1]))
    print("Cy after the base:       ", repr(after_the_base()))
    print("keys without an adapter: ", repr(after_the_base(key=False)))
