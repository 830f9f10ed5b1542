"""Checks of adapters, each tried on whichever vLLM `import vllm` finds: what phase 11's script is told.

`vllm_adapters.py` asks vLLM's gate, managers, layers and keys; a check judges what they answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from course.drift.record import ROOT
from course.faults.checks_apart import Seen
from course.learner.labs import load_module

PHASE = ROOT / "phase-11-multi-lora"


def _ask(topic: str) -> list[str]:
    """What a topic of the script says."""
    said: list[str] = []
    load_module(PHASE / "vllm_adapters.py", "vllm_adapters_checked").TOPICS[topic](said.append)
    return said


def forgotten_in_flight() -> Seen:
    last = _ask("in_flight")[-1]
    return "AssertionError" in last, last


def gathered_by_default() -> Seen:
    whole, sharded = " ".join(_ask("halves")).split("fully_sharded_loras True")
    found = whole.count("all-gather"), sharded.count("all-gather")
    return found[0] > 0, f"all-gathers by default {found[0]}, fully sharded {found[1]}"


def last_slot_of_all() -> Seen:
    said = next(line for line in _ask("rows") if "added to each row" in line)
    added = json.loads(said[said.index("[") :])
    return added[3] != 0 or added[5] != 0, f"rows without an adapter: {added[3]}, {added[5]} added"


def moved_slots() -> Seen:
    last = _ask("moved")[-1]
    return not last.endswith(": 1"), last


def salt_as_a_name() -> Seen:
    last = _ask("keys")[-1]
    return "shared with: ada" in last, " ".join(last.split())


def patterns_passed_over() -> Seen:
    """Their query projections are to have the scale 64 / 4."""
    from vllm.lora.peft_helper import PEFTHelper

    plain = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    known: Any = PEFTHelper.from_dict(plain | {"alpha_pattern": {"q_proj": 64}})
    kept = getattr(known, "alpha_pattern", None)
    return not kept, f"of alpha_pattern is kept: {kept}"


def in_place_for_ever() -> Seen:
    """A request as the server keeps it once it has loaded an adapter in place."""
    import asyncio

    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

    async def add_lora(request: Any) -> bool:
        return True

    class Lock:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    serving: Any = OpenAIServingModels.__new__(OpenAIServingModels)
    serving.lora_requests, serving.lora_resolver_lock = {}, {"ada": Lock()}
    serving.lora_id_counter = SimpleNamespace(inc=lambda by: by)
    serving.registry = SimpleNamespace(is_base_model=lambda name: False)
    serving.engine_client = SimpleNamespace(add_lora=add_lora)
    body = LoadLoRAAdapterRequest(lora_name="ada", lora_path="a/", load_inplace=True)
    asyncio.run(serving.load_lora_adapter(body))
    kept = serving.lora_requests["ada"].load_inplace
    return kept, f"load_inplace of the request that is kept: {kept}"


def evicted_by_its_own_step() -> Seen:
    """Slots and memory for two, which 3 and 1 have. A step of 4 and 3, in this order: how many loads?"""
    script = load_module(PHASE / "vllm_adapters.py", "vllm_adapters_checked")
    loads: list[int] = []
    manager = script.make_manager(max_loras=2, max_cpu_loras=2, loads=loads)
    for numbers in ((3,), (1,), (4, 3)):
        manager.set_active_adapters([script.ask(number) for number in numbers], None)
    return len(loads) > 3, f"loaded {loads}; 4 alone was missing"


def name_is_the_key() -> Seen:
    """Another folder under an old name: are its first blocks the old one's?"""
    said = next(line for line in _ask("keys") if line.startswith("ada, id 2"))
    return re.search("shared with: ada", said) is not None, " ".join(said.split())


OF_ADAPTERS: dict[str, Callable[[], Seen]] = {
    "in-flight": forgotten_in_flight, "gathered": gathered_by_default, "last-slot": last_slot_of_all,
    "moved": moved_slots, "salt": salt_as_a_name, "old-name": name_is_the_key,
    "patterns": patterns_passed_over, "in-place": in_place_for_ever,
    "evicted": evicted_by_its_own_step,
}  # fmt: skip
