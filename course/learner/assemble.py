"""Your engine: the parts you built where their labs pass, `mini_vllm`'s own for the rest.

`mini-vllm generate --mine` finds `my_parts` through the entry point group `mini_vllm.parts`, so that
the engine need not know the course.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course.learner.grade import Job, cached_runs
from course.learner.labs import Course, CourseError, Lab, engine_parts, load_course, load_module
from course.learner.progress import digest
from course.learner.reset import changed
from course.learner.results import LabRun
from course.learner.stubs import functions, unwritten
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts

CHECK_PROMPTS = ("The scheduler", "A block table", "Prefix caching")


@dataclass(frozen=True)
class Part:
    """Whose one part of the engine is.

    Attributes:
        name: the field of `EngineParts`.
        lab: the lab that builds it, or None while no phase does.
        factory: the learner's class if it is theirs, else None.
        why: what decided it, in a few words.
        begun: whether the learner has changed the starter of that lab.
    """

    name: str
    lab: Lab | None
    factory: Any
    why: str
    begun: bool = False

    @property
    def mine(self) -> bool:
        return self.factory is not None


def _verdict(course: Course, lab: Lab, run: LabRun) -> Part:
    assert lab.part is not None
    assert lab.class_name is not None
    factory = None
    if run.passed:
        module = load_module(
            lab.starter, f"lab_{lab.phase:02}_{lab.number:02}_{digest(lab.starter)}"
        )
        factory = getattr(module, lab.class_name, None)
        if isinstance(factory, type):
            why = "passes"
        else:
            factory, why = None, f"refused, {lab.starter.name} has no class {lab.class_name}"
    else:
        why = _why_not(run)
    return Part(lab.part, lab, factory, f"lab {lab.id}: {why}", begun=True)


def _why_not(run: LabRun) -> str:
    if run.problem is not None:
        return f"refused, {run.problem}"
    if run.bad:
        first = run.bad[0]
        message = " ".join(first.message.split()) or first.outcome
        return f"refused, {first.name} fails: {textwrap.shorten(message, 160, placeholder=' …')}"
    todo = [test.function for test in run.tests if test.outcome == "todo" and test.function]
    return f"{todo[0]} is not written yet" if todo else "refused, its tests were skipped here"


def left_open(lab: Lab) -> str | None:
    """The first function of starter.py that the lab has the learner write and that is not written yet."""
    wanted = functions(ast.parse(lab.solution.read_bytes()))
    text = lab.starter.read_text(encoding="utf-8", errors="replace")
    open_ = unwritten(text) & wanted.keys()
    return min(open_, key=[*wanted].index) if open_ else None


def find_parts(course: Course, on_wait: Callable[[int], None] | None = None) -> list[Part]:
    """Every part of the engine, and whose it is.

    A lab in which something is still to be written cannot pass, so it is not graded. The others are, all at
    once, but for those that were graded as they are now; `on_wait` hears how many that leaves.
    Where several labs build the same part, the last that passes gives it. If none does, the line is
    about the last that is begun, or about the first.
    """
    labs = [lab for lab in course.labs if lab.part is not None and lab.starter.is_file()]
    still = {lab.id: left_open(lab) for lab in labs}
    written = [lab for lab in labs if still[lab.id] is None]
    jobs = [(lab, Job(lab.folder, lab.starter)) for lab in written]
    runs = dict(
        zip([lab.id for lab in written], cached_runs(course.root, jobs, on_wait), strict=True)
    )
    begun = {lab.id for lab in changed(course, [lab for lab in labs if lab.id not in runs])}
    chosen: dict[str, Part] = {}
    for lab in labs:
        assert lab.part is not None
        if lab.id in runs:
            part = _verdict(course, lab, runs[lab.id])
        else:
            why = f"lab {lab.id}: {still[lab.id]} is not written yet"
            part = Part(lab.part, lab, None, why, lab.id in begun)
        before = chosen.get(part.name)
        if before is None or part.mine or (part.begun and not before.mine):
            chosen[part.name] = part
    nobody = "no lab builds it yet"
    return [chosen.get(name) or Part(name, None, None, nobody) for name in engine_parts()]


def adapt_kv_cache_manager(manager: type[Any]) -> type[Any]:
    """A learner's manager, called as the engine calls its own: with slots for drafts, which lab 02-03 knows
    nothing of. Raises CourseError, in its methods, if there are any."""

    def refuse(**slots: int) -> None:
        for name, number in slots.items():
            if number:
                raise CourseError(
                    f"{name} is {number}, and {manager.__name__} of lab 02-03 has no slots for drafts: "
                    "run it without speculation"
                )

    class Adapted(manager):
        def allocate_slots(self, *args: Any, num_lookahead_tokens: int = 0, **kwargs: Any) -> Any:
            refuse(num_lookahead_tokens=num_lookahead_tokens)
            return super().allocate_slots(*args, **kwargs)

        def max_blocks_needed(
            self, request: Any, num_draft_slots: int = 0, num_lookahead_tokens: int = 0
        ) -> Any:
            refuse(num_draft_slots=num_draft_slots, num_lookahead_tokens=num_lookahead_tokens)
            return super().max_blocks_needed(request)

    Adapted.__name__ = manager.__name__
    return Adapted


def build(parts: list[Part]) -> EngineParts:
    """The parts as the engine takes them."""
    mine = {part.name: part.factory for part in parts if part.mine}
    if "kv_cache_manager" in mine:
        mine["kv_cache_manager"] = adapt_kv_cache_manager(mine["kv_cache_manager"])
    return dataclasses.replace(DEFAULT_PARTS, **mine)


def my_parts() -> tuple[EngineParts, list[str]]:
    """What `mini-vllm generate --mine` runs on, and the lines it prints about that.

    Raises CourseError outside of the repository.
    """
    course = load_course()
    parts = find_parts(course, _say_wait)
    lines = [
        f"{part.name:17} {'yours' if part.mine else 'reference':10} {part.why}"
        for part in parts
        if part.begun
    ]
    return build(parts), [*lines, *not_begun(parts)]


def _say_wait(number: int) -> None:
    labs = "1 lab has" if number == 1 else f"{number} labs have"
    print(f"mini-vllm: {labs} changed since the last grading: running the tests", file=sys.stderr)


def not_begun(parts: Sequence[Part]) -> list[str]:
    """One line about the parts of which the learner has begun no lab; none where there are none."""
    names = [part.name for part in parts if not part.begun]
    return [f"no lab begun, so the reference's: {', '.join(names)}"] if names else []


def same_tokens(parts: EngineParts, max_tokens: int = 40) -> list[tuple[str, list[int], list[int]]]:
    """Prompt, tokens of the engine made of `parts`, tokens of the reference; greedy and seeded.

    Where a part of yours is for graphs, your engine runs under them.
    """
    from mini_vllm.config.engine import EngineConfig
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.sampling_params import SamplingParams

    graphs = ("graph_runner", "cudagraph_dispatcher")
    own_graphs = any(getattr(parts, name) != getattr(DEFAULT_PARTS, name) for name in graphs)
    mode = "FULL_AND_PIECEWISE" if own_graphs else "NONE"
    results: list[dict[str, list[int]]] = []
    for each, cudagraph_mode in ((parts, mode), (DEFAULT_PARTS, "NONE")):
        engine = LLMEngine(config=EngineConfig(cudagraph_mode=cudagraph_mode), parts=each)
        for number, prompt in enumerate(CHECK_PROMPTS):
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
            engine.add_request(f"{number}, greedy", prompt, params)
            params = SamplingParams(temperature=0.8, seed=number, max_tokens=max_tokens)
            engine.add_request(f"{number}, seed {number}", prompt, params)
        tokens: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        results.append(tokens)
    mine, reference = results
    if mine.keys() != reference.keys():
        raise CourseError("the engine on your parts did not finish every request")
    return [
        (f"{CHECK_PROMPTS[int(name[0])]!r}{name[1:]}", mine[name], reference[name])
        for name in reference
    ]
