"""Lab 11-04's predictions, by the engine's own gate and manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from course.learner.labs import load_module
from mini_vllm.core.sched.admission import AdmissionRule
from mini_vllm.lora.admission import LoRAAdmission
from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

LAB = Path(__file__).resolve().parents[2] / "phase-11-multi-lora/labs/lab-04-slots-and-admission"


class EngineManager(LRUCacheWorkerLoRAManager[int, Any]):
    """The engine's manager, asked as the lab's is."""

    def set_active_adapters(self, ids: Any) -> None:
        super().set_active_adapters({i: i for i in ids})


def test_the_predictions() -> None:
    """Each of the six follows from the README's scenes."""
    support = load_module(LAB / "support.py", "lab_11_04_support_test")
    said = load_module(LAB / "solution.py", "lab_11_04_solution_test").predictions()

    def first_steps(work: Any, *rules: AdmissionRule) -> dict[int, int]:
        played = support.timeline(work, rules)
        return {int(name.split("-")[0]): steps[0] for name, steps in played.items()}

    for name, places in (("first step", 8), ("four places", 4)):
        starts = first_steps(support.scene(support.QUEUE, places), LoRAAdmission(2))
        assert sorted(i for i, step in starts.items() if step == 1) == said[name]
    work = support.scene(support.STREAM)
    starts = first_steps(work, LoRAAdmission(2))
    assert (starts[3], starts[4]) == said["skip"]
    starts = first_steps(work, support.Barrier(LoRAAdmission(2)))
    assert (starts[3], starts[4]) == said["barrier"]
    for name, room in (("by default", 2), ("three in memory", 3)):
        steps = tuple(support.Operation("=", (i,)) for i in (1, 2, 3, 1, 2, 3))
        seen = list(support.play_trace(EngineManager, support.Trace(2, room, steps)))
        assert (sum(len(s.loads) for s in seen), sum(len(s.fills) for s in seen)) == said[name]


def test_the_recording_says_something() -> None:
    """Sixty traces, with evictions from slots alone and from memory, bad files and removals. And 24
    workloads, each of which goes otherwise without a gate."""
    support = load_module(LAB / "support.py", "lab_11_04_support_recorded")
    recorded = support.recorded()
    read = [support.read_trace(line) for of in recorded["traces"].values() for line in of]
    assert len(read) == 60
    seen = [one for _, of_trace in read for one in of_trace]
    assert sum(one.failed for one in seen) > 10
    assert sum(len(one.fills) > len(one.loads) for one in seen) > 50
    assert sum(operation.kind == "-" for trace, _ in read for operation in trace.operations) > 20
    works = [(shape, *line) for shape, of in recorded["workloads"].items() for line in of]
    assert len(works) == 24
    for shape, seed, _, _, admitted in works:
        work = support.workload(seed, shape)
        steps = list(support.decide(work, support.make_parts(work, [])))
        assert support.write_admissions(steps) != admitted
