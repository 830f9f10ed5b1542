"""Run worlds, sort what goes wrong by cause, and keep the smallest world of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from course.fuzz.causes import cause_of, goes_wrong
from course.fuzz.draw import worlds
from course.fuzz.drive import Make, play
from course.fuzz.engines import engine_of
from course.fuzz.memory import Wrong
from course.fuzz.shrink import shrink, size
from course.fuzz.world import World

SCHEDULERS = {"Scheduler": ("sync",), "AsyncScheduler": ("async", "early", "mixed")}
SHRUNK = 3  # worlds of a cause that are shrunk; the smallest result is kept


@dataclass
class Finding:
    """A cause, and the worlds that it spoils.

    Attributes:
        kind: what went wrong, as a class of `memory` and `drive`; of NoProgress with the way.
        names: of the worlds; the first ones.
        count: of all worlds.
        smallest: the shrunk one, and what is said of it.
    """

    kind: str
    cause: str
    names: list[str] = field(default_factory=list)
    count: int = 0
    smallest: World | None = None
    message: str = ""

    def as_data(self) -> dict[str, Any]:
        assert self.smallest is not None
        return {
            "kind": self.kind,
            "cause": self.cause,
            "worlds": self.count,
            "first": self.names[:SHRUNK],
            "message": self.message,
            "shrunk": self.smallest.as_data(),
        }


def kind_of(error: Wrong) -> str:
    """The class of what went wrong; of NoProgress and Crash with its first words."""
    name = type(error).__name__
    return f"{name}: {str(error).split(':')[0]}" if name in ("NoProgress", "Crash") else name


def hunt(
    engine: str,
    scheduler: str,
    policy: str,
    steps: int,
    seed: int = 0,
    make: Make | None = None,
    report: Callable[[str], None] | None = None,
    with_drafts: bool = False,
) -> dict[str, Any]:
    """Run worlds until they have taken `steps` steps; what was run and found, ready for JSON.

    `scheduler`: a key of `SCHEDULERS`. `make`: another way to an engine than by name. `with_drafts`: worlds
    in which somebody drafts.
    """

    def by_name(world: World) -> Any:
        return engine_of(engine, world)

    make = make or by_name
    taken = count = preemptions = 0
    found: dict[tuple[str, str], Finding] = {}
    spoiled: dict[tuple[str, str], list[World]] = {}
    for world in worlds(seed, SCHEDULERS[scheduler], policy, with_drafts):
        if taken >= steps:
            break
        count += 1
        try:
            run = play(world, make)
        except Wrong as error:
            run = error.run  # type: ignore[attr-defined]
            key = kind_of(error), cause_of(world, make)
            finding = found.setdefault(key, Finding(*key))
            finding.count += 1
            spoiled.setdefault(key, []).append(world)
            if finding.count <= SHRUNK:
                finding.names.append(world.name)
                if report is not None:
                    report(f"{world.name}: {key[0]}: {error} [{key[1]}]")
        taken += run.steps
        preemptions += run.preemptions
    for key, finding in found.items():
        _shrink(finding, spoiled[key], make)
    return {
        "scheduler": scheduler,
        "policy": policy,
        "seed": seed,
        "steps": taken,
        "worlds": count,
        "preemptions": preemptions,
        "findings": [finding.as_data() for finding in found.values()],
    }


def _shrink(finding: Finding, spoiled: list[World], make: Make) -> None:
    """Fill in the smallest of the worlds that have this finding's cause."""

    def same(world: World) -> bool:
        error = goes_wrong(world, make)
        return (
            error is not None
            and kind_of(error) == finding.kind
            and cause_of(world, make) == finding.cause
        )

    finding.smallest = min((shrink(world, same) for world in spoiled[:SHRUNK]), key=size)
    finding.message = str(goes_wrong(finding.smallest, make))
