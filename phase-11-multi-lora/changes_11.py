"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-11-multi-lora/changes_11.py {starve,products}
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
from tenants import ask_for

from mini_vllm import LLM, SamplingParams

PROMPT = "A cached block"


class Counted(np.ndarray[Any, Any]):
    """A matrix that counts the products with it."""

    products = 0

    def __rmatmul__(self, rows: Any) -> Any:
        Counted.products += 1
        return rows @ np.asarray(self)


def starve() -> None:
    """One slot. A request of Ada's comes in every tenth step, twelve in all, with 20 tokens each; Bo's comes
    in step 5, with 4. The steps in which Bo's and Ada's last end."""
    engine = LLM(enable_lora=True, max_loras=1).llm_engine
    ended: dict[str, int] = {}
    step = 0
    while step < 120 or engine.has_unfinished_requests():
        step += 1
        arriving = [("ada", 20)] if step % 10 == 1 and step < 120 else []
        for tenant, max_tokens in arriving + ([("bo", 4)] if step == 5 else []):
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            name = f"{tenant} {step}"
            engine.add_request(name, PROMPT, params, lora_request=ask_for(tenant))
        ended |= {output.request_id: step for output in engine.step() if output.finished}
    print("bo", ended["bo 5"], "ada", ended["ada 111"])


def products() -> None:
    """Eight requests, Ada's and Bo's in turn: products with an A in one step of decoding, all layers."""
    llm = LLM(enable_lora=True, max_loras=2)
    engine = llm.llm_engine
    for number in range(8):
        tenant = ("ada", "bo")[number % 2]
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        engine.add_request(str(number), PROMPT, params, lora_request=ask_for(tenant))
    engine.step()
    component: Any = engine.engine_core.model_runner.lora
    for layer in component.layers:
        for slot, pieces in layer.slots.items():
            layer.slots[slot] = [replace(p, lora_a=p.lora_a.view(Counted)) for p in pieces]
    engine.step()
    print(Counted.products)


if __name__ == "__main__":
    {"starve": starve, "products": products}[sys.argv[1]]()
