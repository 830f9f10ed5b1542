"""Lab 11-04: the predictions, the slots beside vLLM's managers, the gate beside its scheduler, the engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.core.sched.admission import Admission, AdmissionRule

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "first step": ([1, 2, 3, 5, 6, 8], "Which requests would bring a third adapter?"),
        "four places": ([1, 2, 3, 5], "Does a request that is skipped take a place?"),
        "skip": ((25, 2), "When does no running request have Ada's adapter, or none Bo's?"),
        "barrier": ((11, 11), "Who has to finish before request 3 may run, and what is behind it?"),
        "by default": ((6, 6), "What is in memory when Ada comes again?"),
        "three in memory": ((3, 6), "What does the third adapter take from the first: memory, or its slot?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the slots -----------------------------------------------------------------------------------


class _Disk:
    """Notes what is loaded and filled; adapter 9 cannot be read."""

    def __init__(self, lab: ModuleType, max_loras: int, max_cpu_loras: int) -> None:
        self.loads: list[int] = []
        self.fills: list[tuple[int, str]] = []
        self.manager = lab.SlotManager(max_loras, max_cpu_loras, self.load, self.set_slot)

    def load(self, adapter_id: int) -> str:
        self.loads.append(adapter_id)
        if adapter_id == support.BAD:
            raise support.BadAdapterError(f"adapter {support.BAD} cannot be read")
        return f"weights of {adapter_id}"

    def set_slot(self, index: int, adapter: str) -> None:
        self.fills.append((index, adapter))

    def state(self) -> tuple[list[Any], list[Any]]:
        return list(self.manager.lora_index_to_id), list(self.manager.list_adapters())


def test_the_longest_unused_goes(lab: ModuleType) -> None:
    """A use counts also if the adapter is in memory and in a slot already."""
    disk = _Disk(lab, 2, 2)
    for ids in ([1], [2], [1], [3]):
        disk.manager.set_active_adapters(ids)
    slots, memory = disk.state()
    assert slots == [1, 3], (
        f"steps with 1, 2, 1, 3 on two slots: 2 is unused longest, so they have 1 and 3; yours {slots}"
    )
    assert memory == [1, 3], (
        f"steps with 1, 2, 1, 3, room for two: 2 is unused longest, so 1 and 3 stay; yours {memory}"
    )


def test_leaving_a_slot_is_not_leaving_memory(lab: ModuleType) -> None:
    """With room in memory, an adapter that has lost its slot is not read again."""
    disk = _Disk(lab, 1, 2)
    for ids in ([1], [2], [1]):
        disk.manager.set_active_adapters(ids)
    assert disk.loads == [1, 2], (
        f"one slot, room for two in memory, steps with 1, 2, 1: reads {disk.loads} from disk"
    )
    fills = [(0, f"weights of {i}") for i in (1, 2, 1)]
    assert disk.fills == fills, (
        f"one slot, steps with 1, 2, 1: set_slot is to be called with {fills}, and was with {disk.fills}"
    )


def test_leaving_memory_is_leaving_the_slot(lab: ModuleType) -> None:
    """Every active adapter is in memory, also when one in a slot is the longest unused in memory."""
    disk = _Disk(lab, 2, 3)
    for adapter_id in (1, 2, 3):
        disk.manager.add_adapter(adapter_id)
    disk.manager.activate_adapter(1)
    disk.manager.add_adapter(4)
    slots, memory = disk.state()
    lost = [i for i in slots if i is not None and i not in memory]
    assert not lost, (
        "two slots, room for three in memory; 1, 2 and 3 are added, 1 is activated, 4 is added: slots "
        f"{slots} and memory {memory}, so {lost} are in a slot and not in memory"
    )


def test_a_bad_adapter_takes_nothing(lab: ModuleType) -> None:
    """If an adapter cannot be read, the others keep memory and slots, and the caller hears of it."""
    disk = _Disk(lab, 2, 2)
    disk.manager.set_active_adapters([1, 2])
    before = disk.state()
    with pytest.raises(support.BadAdapterError):
        disk.manager.add_adapter(support.BAD)
    after = disk.state()
    assert after == before, (
        f"adapter {support.BAD} cannot be read: slots and memory were {before}, and are {after}"
    )


def test_removing_an_adapter(lab: ModuleType) -> None:
    """A removed adapter leaves both its slot and memory; one that is not there changes nothing."""
    disk = _Disk(lab, 2, 3)
    disk.manager.set_active_adapters([1, 2])
    assert disk.manager.remove_adapter(7) is False, "7 was never loaded: False"
    assert disk.state() == ([1, 2], [1, 2]), f"7 was never loaded, and there are {disk.state()}"
    assert disk.manager.remove_adapter(1) is True, "1 was in memory: True"
    slots, memory = disk.state()
    assert slots == [None, 2], f"1 was removed from slot 0, and the slots are {slots}"
    assert memory == [2], f"1 was removed, and in memory are {memory}"
    disk.manager.add_adapter(1)
    assert disk.loads == [1, 2, 1], f"1 was removed and added again; read from disk: {disk.loads}"
    assert disk.fills[2:] == [(0, "weights of 1")], (
        f"1 was removed from slot 0 and added again, and these were filled: {disk.fills[2:]}"
    )


def test_a_step_with_too_many_adapters(lab: ModuleType) -> None:
    """More adapters than slots: RuntimeError, and nothing has happened."""
    disk = _Disk(lab, 2, 3)
    disk.manager.set_active_adapters([1, 2])
    before = disk.state()
    with pytest.raises(RuntimeError):
        disk.manager.set_active_adapters([3, 1, 4])
    assert disk.state() == before, f"three adapters for two slots: {before} became {disk.state()}"
    assert disk.loads == [1, 2], f"three adapters for two slots, and read were {disk.loads}"


def check_trace(lab: ModuleType, where: str, line: Any) -> None:
    """Fails at the first operation after which the lab's manager is not where vLLM's was."""
    trace, expected = support.read_trace(line)
    before = support.Seen(slots=(None,) * trace.max_loras)
    played = support.play_trace(lab.SlotManager, trace)
    for number, (operation, want) in enumerate(zip(trace.operations, expected, strict=True)):
        got = next(played)
        for what, mine, theirs in (
            ("it reads from disk", got.loads, want.loads),
            ("an error of load reaches the caller", got.failed, want.failed),
            ("the slots are", got.slots, want.slots),
            ("in memory, the longest unused first, are", got.memory, want.memory),
            ("it fills, each as (slot, adapter),", got.fills, want.fills),
        ):
            same = mine == theirs  # not in the assert: the grade would print both a second time
            mine, theirs = (list(v) if isinstance(v, tuple) else v for v in (mine, theirs))
            assert same, (
                f"{where}, max_loras {trace.max_loras}, max_cpu_loras {trace.max_cpu_loras}, operation "
                f"{number}. Slots {list(before.slots)}, memory {list(before.memory)}, then {operation}: "
                f"{what} {theirs} in vLLM, and {mine} in yours"
            )
        before = got


@pytest.mark.parametrize("kind", support.KINDS)
def test_loads_and_slots_are_vllms(lab: ModuleType, kind: str) -> None:
    """After each operation of 60 recorded traces: loads, slots and memory are those of vLLM's managers."""
    for number, line in enumerate(support.recorded()["traces"][kind]):
        check_trace(lab, f"{kind} {number}", line)


# ---- the gate ------------------------------------------------------------------------------------


def pass_gate(gate: Any, running: str, waiting: str) -> list[str]:
    """What becomes of the waiting requests in a step; an admitted one is in it."""
    gate.start_step([support.request_of(name) for name in running.split()])
    said = []
    for name in waiting.split():
        request = support.request_of(name)
        decision = gate.check(request)
        assert isinstance(decision, Admission), f"check returns an Admission, not {decision!r}"
        said.append(decision.name)
        if decision is Admission.ADMIT:
            gate.admit(request, 0)
        elif decision is Admission.STOP:
            break
    return said


CASES = {
    "skip": (2, "", "1-ada 2-bo 3-cy 4-bo", "ADMIT ADMIT SKIP ADMIT"),
    "distinct": (2, "", "1-ada 2-ada 3-ada 4-bo 5-cy", "ADMIT ADMIT ADMIT ADMIT SKIP"),
    "running": (2, "1-ada 2-bo", "3-cy 4-ada", "SKIP ADMIT"),
    "running distinct": (2, "1-ada 2-ada", "3-bo 4-cy", "ADMIT SKIP"),
    "plain": (1, "1-ada", "2-noor 3-bo 4-noor", "ADMIT SKIP ADMIT"),
    "plain first": (1, "1-noor", "2-noor 3-ada 4-bo", "ADMIT ADMIT SKIP"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate(lab: ModuleType, name: str) -> None:
    """A third adapter is skipped; adapters that the step has, and requests without one, pass."""
    max_loras, running, waiting, expected = CASES[name]
    said = pass_gate(lab.LoRAGate(max_loras), running, waiting)
    right = said == expected.split()
    assert right, (
        f"max_loras {max_loras}; running {running or 'none'}, waiting {waiting}: {expected}, and yours "
        f"{' '.join(said)}"
    )


def test_each_step_begins_anew(lab: ModuleType) -> None:
    """An adapter that no running request has any more leaves room for another."""
    gate = lab.LoRAGate(1)
    pass_gate(gate, "", "1-ada")
    said = pass_gate(gate, "", "2-bo 3-ada")
    assert said == ["ADMIT", "SKIP"], (
        f"one slot; Ada's request has finished, 2-bo and 3-ada wait: ADMIT SKIP, and yours {' '.join(said)}"
    )


class _KnowsNotYet(AdmissionRule):
    """Holds one request back after the gate has let it pass, as a KV connector does."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int | None:
        return None if request.request_id == "1-cy" else 0


def test_check_notes_nothing(lab: ModuleType) -> None:
    """A request that has passed `check` may still be held back. Its adapter is not in the step then."""
    work = support.scene([("cy", 1, 4), ("ada", 1, 4)])
    rules = [lab.LoRAGate(1), _KnowsNotYet()]
    first = next(support.decide(work, support.make_parts(work, rules)))
    assert first.admitted == ("2-ada",), (
        "one slot; 1-cy passes the gate and is skipped by another rule, so 2-ada may run. Admitted: "
        f"{list(first.admitted)}"
    )


@pytest.mark.parametrize("shape", support.SHAPES)
def test_admissions_are_vllms(lab: ModuleType, shape: str) -> None:
    """In 24 workloads, the requests that each step admits are those that vLLM's scheduler admitted."""
    for seed, max_loras, num_steps, text in support.recorded()["workloads"][shape]:
        admitted = support.read_admissions(text)
        work = support.workload(seed, shape)
        found = support.first_difference(lab, work, max_loras, admitted, num_steps)
        same = not found  # not in the assert: the grade would print it a second time
        assert same, f"{shape} {seed}, {found}"


# ---- the engine ----------------------------------------------------------------------------------


def test_every_tenant_gets_its_own_answer(lab: ModuleType) -> None:
    """With your manager and gate in the engine, requests with three adapters and none get their tokens."""
    got, want = support.answers(lab), support.answers()
    for name, tokens in want.items():
        assert name in got, f"{name} gets no answer"
        assert got[name] == tokens, f"{name} gets {got[name]}; the engine's own parts give {tokens}"
