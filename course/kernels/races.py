"""The second judge: programs of one launch must leave each other alone.

A GPU runs them at the same time and in any order. So no address may be written by one program and touched
by another, unless both do so by atomics, or an atomic stands between: the first program stores, waits for its
own threads, then counts up; the second reads the count, then loads. The threads of one program run in any
order, too: what one has stored another may load behind a barrier only. The interpreter runs one program after
the other, and its lanes together, which hides a race: the result is right, and the kernel is refused all the
same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np

from course.kernels.memory import Array
from course.kernels.record import Access, Launch
from course.kernels.report import Finding

JUDGE = "races"
_VERBS = {"load": "loads", "store": "stores to", "atomic": "changes by an atomic"}


def judge_races(launches: Iterable[Launch], where: str) -> Iterator[Finding]:
    """One finding for each tensor over which programs race."""
    for launch in launches:
        yield from _judge_threads(launch, where)
        tensors: dict[str, list[int]] = defaultdict(list)
        for number, access in enumerate(launch.accesses):
            tensors[access.region.name].append(number)
        order = Order(launch.accesses, launch.barriers)
        for name, numbers in tensors.items():
            pairs = list(_conflicts(launch.accesses, numbers, order))
            if not pairs:
                continue
            address, first, second = pairs[0]
            if second.kind == "store":
                first, second = second, first
            message = (
                f"{launch.name}: program {launch.program(first.program)} {_VERBS[first.kind]} "
                f"{first.region.label(address)} in line {first.line}, and program "
                f"{launch.program(second.program)} {_VERBS[second.kind]} it in line {second.line}. A GPU "
                f"runs them in any order, or at once ({len(pairs)} such addresses in {name}; {where})."
            )
            if order.counts_early:
                message += (
                    " An atomic stands between, but no tl.debug_barrier() before it: one warp may count "
                    "while another has not stored."
                )
            figures = {"kernel": launch.name, "tensor": name, "addresses": len(pairs)}
            yield Finding(JUDGE, False, message, figures)


def _judge_threads(launch: Launch, where: str) -> Iterator[Finding]:
    """One finding for each pair of lines in which threads of one program disturb each other."""
    seen = set()
    for clash in launch.clashes:
        pair = clash.first, clash.second
        if pair not in seen:
            seen.add(pair)
            (kind, line), (then, later) = pair
            message = (
                f"{launch.name}: program {launch.program(clash.program)} {_VERBS[kind]} {clash.where} in "
                f"line {line} and {_VERBS[then]} it in line {later}, in other threads, with no barrier "
                f"between: put tl.debug_barrier() there, or keep it in registers ({where})."
            )
            yield Finding(JUDGE, False, message, {"kernel": launch.name, "line": later})


def _conflicts(
    accesses: list[Access], numbers: list[int], order: Order
) -> Iterator[tuple[int, Access, Access]]:
    """Every address of one tensor over which two programs race, with one pair of their accesses."""
    if all(accesses[number].kind == "load" for number in numbers):
        return
    address, who = _flatten(accesses, numbers)
    by_address = np.argsort(address, kind="stable")
    address, who = address[by_address], who[by_address]
    program = np.array([access.program for access in accesses])[who]
    loads = np.array([access.kind == "load" for access in accesses])[who]
    atomic = np.array([access.kind == "atomic" for access in accesses])[who]
    # One group for each address: touched by several programs, written, and not by atomics alone?
    begin = np.flatnonzero(np.diff(address, prepend=-1))
    several = np.maximum.reduceat(program, begin) != np.minimum.reduceat(program, begin)
    written = np.logical_or.reduceat(~loads, begin)
    plain = np.logical_or.reduceat(~atomic, begin)
    end = np.append(begin[1:], len(address))
    for group in np.flatnonzero(several & written & plain):
        touching = who[begin[group] : end[group]].tolist()
        for i, j in combinations(sorted(touching), 2):
            first, second = accesses[i], accesses[j]
            harmless = (
                first.kind == second.kind and first.kind != "store"
            )  # both load, or both atomic
            if first.program != second.program and not harmless and not order.given(i, j):
                yield int(address[begin[group]]), first, second
                break


def _flatten(accesses: list[Access], numbers: list[int]) -> tuple[Array, Array]:
    """Every address touched, and the number of the access that touched it.

    Where elements of several sizes lie in one tensor, an access to a wide one counts for each narrow one.
    """
    unit = min(accesses[number].size for number in numbers)
    parts, who = [], []
    for number in numbers:
        access = accesses[number]
        steps = np.arange(0, access.size, unit)
        addresses = np.add.outer(access.addresses, steps).ravel()
        parts.append(addresses)
        who.append(np.full(addresses.size, number))
    return np.concatenate(parts), np.concatenate(who)


class Order:
    """Which accesses of two programs come in a certain order, because atomics say so."""

    def __init__(self, accesses: list[Access], barriers: dict[int, list[int]]) -> None:
        self._accesses, self._barriers = accesses, barriers
        self.counts_early = False  # an atomic came where a barrier was missing
        # program -> address -> the numbers of its atomics there, but for relaxed ones
        self._atomics: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, access in enumerate(accesses):
            if access.orders:
                for address in access.addresses.tolist():
                    self._atomics[access.program][address].append(number)

    def given(self, first: int, second: int) -> bool:
        """Whether the first program did an atomic after its access, and the second program, before its
        own, one on the same address that came later. Both are numbers in the log."""
        access = self._accesses[first]
        mine = self._atomics.get(access.program)
        theirs = self._atomics.get(self._accesses[second].program)
        if not mine or not theirs:
            return False
        for address in mine.keys() & theirs.keys():
            after = bisect_left(mine[address], first)
            if after < len(mine[address]) and not access.scalar:
                waits = self._barriers.get(access.program, [])
                barrier = bisect_right(waits, first)
                if barrier == len(waits) or waits[barrier] > mine[address][after]:
                    self.counts_early = True
                    if barrier == len(waits):
                        continue
                    after = bisect_left(mine[address], waits[barrier])
            if after == len(mine[address]):
                continue
            later = bisect_right(theirs[address], mine[address][after])
            if later < len(theirs[address]) and theirs[address][later] <= second:
                return True
        return False
