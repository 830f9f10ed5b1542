"""The first judge: the right numbers, from inside of the tensors, on ragged cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from course.kernels.case import Case, stored_by_kernels
from course.kernels.memory import memory_of
from course.kernels.ran import Ran
from course.kernels.record import Launch
from course.kernels.report import Finding

JUDGE = "right"
LAST = (
    "the numbers of the call before come out again: an answer, or what it is made of, was kept from call to "
    "call"
)
KEPT = (
    "right when it is called for the first time with this shape, and wrong when it is called again: "
    "something is kept from call to call, a workspace or counter that is not reset, a copy, or a plan"
)
SPREAD = 1 << 30  # bytes


def snapshot(case: Case) -> dict[str, torch.Tensor]:
    """All memory of the inputs, guards too, to see afterwards what was written there.

    But for a cache that is spread over gigabytes: it is mostly not there, and would be made by reading.
    """
    tensors = {n: v for n, v in case.inputs.items() if isinstance(v, torch.Tensor)}
    return {
        name: memory_of(tensor).clone()
        for name, tensor in tensors.items()
        if tensor.untyped_storage().nbytes() < SPREAD
    }


def judge_case(case: Case, ran: Ran, explain: Any, note: str = "") -> Iterator[Finding]:
    """What is wrong with one run, the cause first: an access outside, then the numbers, then who made them.
    `note`, `LAST` or `KEPT`, is said of a second call whose numbers no mistake explains."""
    launches = ran.launches
    outside = list(_outside(case, launches))
    yield from outside
    for name in ran.overwritten:
        message = f"{name} is an input, and the kernel wrote to it or beside it ({case.label})."
        yield Finding(JUDGE, False, message, {"tensor": name})
    if not launches:
        said = "no Triton kernel was started: the answer came from somewhere else."
        if note:
            said = f"no Triton kernel was started when it was called again: {note} ({case.label})."
        yield Finding(JUDGE, False, said)
        if note:
            return
    expected, got = case.expected, ran.got
    if got is None:
        yield Finding(JUDGE, False, f"it must return a tensor, and returns {ran.returned}.")
        return
    want = (tuple(expected.shape), case.dtype)
    if (tuple(got.shape), got.dtype) != want:
        said = f"{list(got.shape)} of {got.dtype}"
        yield Finding(
            JUDGE,
            False,
            f"it must return {list(want[0])} of {want[1]}, and returns {said} ({case.label}).",
        )
        return
    bad = ~((got.double() - expected).abs() <= case.tolerance)
    if bad.any() and not outside:
        yield _differs(case, ran, bad, explain, note)
    elif launches and not outside and not ran.stored():
        yield Finding(JUDGE, False, f"{_not_theirs(ran)} ({case.label}).")


def _not_theirs(ran: Ran) -> str:
    assert ran.got is not None
    if stored_by_kernels(ran.launches, ran.address, ran.got, ran.strides):
        return (
            "the numbers are right, but something changed them after the last kernel had stored them: what "
            "is left to do, a sum, a quotient or a conversion, is the kernel's work"
        )
    return (
        "the numbers are right, but no kernel stored them: they come from torch, or a kernel's result was "
        "copied. What the launcher returns must be the memory that the kernels store to"
    )


def judge_flipped(case: Case, ran: Ran) -> Iterator[Finding]:
    """What made the answer, where the large inputs had these numbers only while kernels ran. `case` has the
    answer that belongs to them."""
    loaded = {access.region.name for launch in ran.launches for access in launch.accesses}
    if set(case.flips) - loaded or ran.got is None or ran.got.shape != case.expected.shape:
        return  # judge `bytes` says what is to be said of a copy
    if bool(((ran.got.double() - case.expected).abs() <= case.tolerance).all()):
        return
    message = (
        f"the answer does not come from what the kernels read: {' and '.join(case.flips)} held other numbers "
        "while they ran, and the answer did not follow. Was it, or a part of it, made before they started, "
        f"or between them, by torch? ({case.label})"
    )
    yield Finding(JUDGE, False, message, {"elsewhere": True})


def _outside(case: Case, launches: list[Launch]) -> Iterator[Finding]:
    """One finding for each line that leaves its tensor."""
    seen = set()
    for launch in launches:
        for access in launch.outside:
            if (launch.name, access.line, access.kind) in seen:
                continue
            seen.add((launch.name, access.line, access.kind))
            cause = "Is a mask missing, or a stride wrong?"
            if access.where.startswith("between the rows"):
                cause = "Its rows do not follow each other without a gap: use the strides it has."
            elif "_cache" in access.where:
                cause = (
                    "Is a mask missing, a stride wrong, or an entry of the table followed that lies behind "
                    "the sequence's blocks?"
                )
            elif "block_table" in access.where:
                cause = (
                    "Is the table's index off by one? Sequence i has row i, and its blocks stand from entry "
                    "0 to entry (length - 1) // block_size."
                )
            if access.distance > 1 << 28:
                what = "a block id" if "block_table" in case.inputs else "an index"
                cause = (
                    f"So far away it looks like a product that has outgrown 32 bits: {what} must become "
                    "tl.int64 before it is multiplied by a stride."
                )
            also = f" and {access.lanes - 1} lanes more" if access.lanes > 1 else ""
            message = (
                f"{launch.name}, line {access.line}: a {access.kind} of program {access.program} goes out of "
                f"bounds: {access.where}{also} ({case.label}). {cause}"
            )
            yield Finding(JUDGE, False, message, {"line": access.line, "kind": access.kind})


def _differs(case: Case, ran: Ran, bad: torch.Tensor, explain: Any, note: str) -> Finding:
    got = ran.got
    assert got is not None
    index = tuple(int(i) for i in bad.nonzero()[0])
    value, wanted = float(got[index]), float(case.expected[index])
    share = f"{int(bad.sum())} of {bad.numel()} numbers"
    if bad.ndim == 3:
        share += f", in {int(bad.any(2).any(1).sum())} of {bad.shape[0]} {case.first_axis}"
        share += f" and {int(bad.any(2).any(0).sum())} of {bad.shape[1]} heads"
    place = ", ".join(map(str, index))
    message = f"out[{place}] is {value:.6g} and must be {wanted:.6g} ({share}; {case.label})."
    named = None if note == LAST else explain(case, got)
    rule = named or _from_the_log(case, ran, index)
    if note and not named:
        rule = note
    if rule:
        message += f" It looks like this: {rule}."
    figures = {"index": list(index), "got": value, "expected": wanted, "case": case.label}
    return Finding(JUDGE, False, message, figures | {"rule": rule})


def _from_the_log(case: Case, ran: Ran, index: tuple[int, ...]) -> str | None:
    """A rule that the log shows to be broken, for numbers that no single mistake explains."""
    got, launches = ran.got, ran.launches
    assert got is not None
    accesses = [(launch, access) for launch in launches for access in launch.accesses]
    loaded = {access.region.name for _, access in accesses}
    for name, value in case.inputs.items():
        if isinstance(value, torch.Tensor) and name not in loaded:
            return f"nothing is loaded from {name}"
    strides = zip(index, ran.strides, strict=True)
    address = ran.address + sum(i * stride for i, stride in strides) * got.element_size()
    stores = [a.line for _, a in accesses if a.kind != "load" and address in a.addresses]
    if not stores:
        return "no program stores there"
    if said := _table(case, launches):
        return said
    for _, access in accesses:
        live = case.live.get(access.region.name)
        if access.kind != "load" or live is None:
            continue
        place, _ = access.region.place(access.addresses)
        written = live[tuple(torch.from_numpy(i) for i in place[: live.ndim])].numpy()
        if not written.all():
            where = access.region.label(int(access.addresses[~written][0]))
            return f"line {access.line} loads {where}, {case.dead}"
    if got.isinf().any():
        return _infinite(got.dtype, stores[-1], "block_table" in case.inputs)
    if not got.isnan().any():
        return None
    if bare := {(launch.name, line) for launch in launches for line in launch.bare}:
        name, line = min(bare)
        return (
            f"a masked load without `other=` ({name}, line {line}) leaves anything in the lanes that are "
            "masked off, here NaN"
        )
    if own := _never_written(launches):
        return f"{own} is read, or added to, where nothing has stored to it"
    if "block_table" not in case.inputs:
        return "0/0, inf - inf or 0 times inf: which number on the way is no longer finite?"
    return (
        "0/0 or inf-inf: a part of the keys that is empty has maximum -inf and sum 0, and where the maximum "
        "does not start at -inf, scores far below its start leave a sum of 0"
    )


def _infinite(kind: torch.dtype, line: int, softmax: bool) -> str:
    """Where an infinite number in the answer comes from; `softmax`: there is a sum of weights."""
    said = f"line {line} stores an infinite number: "
    if kind == torch.float16:
        said += "float16 ends at 65,504, so a sum is beyond it, or "
    if softmax:
        return (
            said + "a quotient by a sum of weights that is 0, or a maximum over no keys is stored"
        )
    return said + "something is divided by 0, or the fill of lanes that are masked off is stored"


def _table(case: Case, launches: list[Launch]) -> str | None:
    """What the entries of the block table that were loaded, or not, say."""
    loaded: dict[int, set[int]] = {row: set() for row in range(len(case.entries))}
    for launch in launches:
        for access in launch.accesses:
            if access.region.name == "block_table" and access.kind == "load":
                place, _ = access.region.place(access.addresses)
                rows = place[0] if len(place) == 2 else 0 * place[0]
                for row, entry in zip(rows.tolist(), place[-1].tolist(), strict=True):
                    loaded[row].add(entry)
    for row, entries in enumerate(case.entries):
        seen, behind = (
            loaded[row],
            f"a sequence's blocks stand from entry 0 on, here {entries} of them",
        )
        if seen and 0 not in seen and min(seen) == 1:
            return (
                f"the table is off by one: of row {row} the entries from 1 to {max(seen)} are read, and "
                f"never entry 0; {behind}"
            )
        if entries > 1 and seen and max(seen) == entries - 2:
            return (
                f"the last block is missing: of row {row} the entries from 0 to {max(seen)} are read; "
                f"{behind}"
            )
    return None


def _never_written(launches: list[Launch]) -> str | None:
    """The first tensor of the kernel's own that is loaded where it was not stored before."""
    stored: set[int] = set()
    for launch in launches:
        for access in launch.accesses:
            addresses = set(access.addresses.tolist())
            if access.kind != "store" and not access.region.given and addresses - stored:
                return f"{access.region.name} ({launch.name}, line {access.line})"
            stored |= addresses
    return None
