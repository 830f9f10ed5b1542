"""The second judge: programs of one launch must leave each other alone.

A GPU runs them at the same time and in any order. So no address may be written by one program and touched
by another, unless all of them touch it by atomics. The interpreter runs one after the other, which hides
this: the result is right, and here it is refused all the same. What the threads of *one* program do to each
other is out of sight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from course.kernels.memory import Array
from course.kernels.record import Access, Launch
from course.kernels.report import Finding

JUDGE = "races"


def judge_races(launches: Iterable[Launch], where: str) -> Iterator[Finding]:
    """One finding for each tensor over which programs race."""
    for launch in launches:
        regions: dict[str, list[Access]] = {}
        for access in launch.accesses:
            regions.setdefault(access.region.name, []).append(access)
        for name, accesses in regions.items():
            if any(access.kind != "load" for access in accesses):
                yield from _one_region(launch, name, accesses, where)


def _one_region(launch: Launch, name: str, accesses: list[Access], where: str) -> Iterator[Finding]:
    address, who = _flatten(accesses)
    program = np.array([access.program for access in accesses])[who]
    stored = np.array([access.kind == "store" for access in accesses])[who]
    atomic = np.array([access.kind == "atomic" for access in accesses])[who]
    order = np.argsort(address, kind="stable")
    first = np.flatnonzero(np.diff(address[order], prepend=-1))
    several = np.maximum.reduceat(program[order], first) != np.minimum.reduceat(
        program[order], first
    )
    written = np.logical_or.reduceat((stored | atomic)[order], first)
    plain = np.logical_or.reduceat(~atomic[order], first)
    bad = np.flatnonzero(several & written & plain)
    if not bad.size:
        return
    begin = first[bad[0]]
    end = first[bad[0] + 1] if bad[0] + 1 < len(first) else len(address)
    here = [accesses[i] for i in who[order[begin:end]]]
    writer, other = next(
        (a, b)
        for a in sorted(here, key=lambda a: a.kind != "store")
        for b in here
        if a.kind != "load" and a.program != b.program and not a.kind == b.kind == "atomic"
    )
    place = writer.region.label(int(address[order[begin]]))
    verb = {"load": "loads", "store": "stores to", "atomic": "changes by an atomic"}
    message = (
        f"{launch.name}: program {launch.program(writer.program)} {verb[writer.kind]} {place} in "
        f"line {writer.line}, and program {launch.program(other.program)} {verb[other.kind]} it in "
        f"line {other.line}. A GPU runs them in any order, or at once ({len(bad)} such addresses in {name}; "
        f"{where})."
    )
    yield Finding(
        JUDGE, False, message, {"kernel": launch.name, "tensor": name, "addresses": len(bad)}
    )


def _flatten(accesses: list[Access]) -> tuple[Array, Array]:
    """Every address touched, and which access touched it.

    Where elements of several sizes lie in one tensor, an access to a wide one counts for each narrow one.
    """
    unit = min(access.size for access in accesses)
    parts, who = [], []
    for number, access in enumerate(accesses):
        steps = np.arange(0, access.size, unit)
        addresses = np.add.outer(access.addresses, steps).ravel()
        parts.append(addresses)
        who.append(np.full(addresses.size, number))
    return np.concatenate(parts), np.concatenate(who)
