"""The first judge: the right numbers, from inside of the tensors, on ragged cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from course.kernels.memory import memory_of
from course.kernels.problems.case import Case
from course.kernels.record import Launch, Recorder
from course.kernels.report import Finding

JUDGE = "right"
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


def judge_case(case: Case, got: Any, recorder: Recorder, explain: Any) -> Iterator[Finding]:
    """What is wrong with one run, the cause first: an access outside, then the numbers."""
    launches = recorder.launches
    outside = list(_outside(case, launches))
    yield from outside
    for name in recorder.overwritten:
        message = f"{name} is an input, and the kernel wrote to it or beside it ({case.label})."
        yield Finding(JUDGE, False, message, {"tensor": name})
    if not launches:
        yield Finding(
            JUDGE, False, "no Triton kernel was started: the answer came from somewhere else."
        )
    expected = case.expected
    if not isinstance(got, torch.Tensor):
        yield Finding(JUDGE, False, f"it must return a tensor, and returns {type(got).__name__}.")
        return
    want = (tuple(expected.shape), next(iter(case.inputs.values())).dtype)  # like the first input
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
        yield _differs(case, got, bad, launches, explain)


def _outside(case: Case, launches: list[Launch]) -> Iterator[Finding]:
    """One finding for each line that leaves its tensor."""
    seen = set()
    for launch in launches:
        for access in launch.outside:
            if (launch.name, access.line, access.kind) in seen:
                continue
            seen.add((launch.name, access.line, access.kind))
            cause = "Is a mask missing, or a stride wrong?"
            if access.distance > 1 << 28:
                cause = (
                    "So far away it looks like a product that has outgrown 32 bits: a block id must become "
                    "tl.int64 before it is multiplied by a stride."
                )
            also = f" and {access.lanes - 1} lanes more" if access.lanes > 1 else ""
            message = (
                f"{launch.name}, line {access.line}: a {access.kind} of program {access.program} goes out of "
                f"bounds: {access.where}{also} ({case.label}). {cause}"
            )
            yield Finding(JUDGE, False, message, {"line": access.line, "kind": access.kind})


def _differs(
    case: Case, got: torch.Tensor, bad: torch.Tensor, launches: list[Launch], explain: Any
) -> Finding:
    index = tuple(int(i) for i in bad.nonzero()[0])
    value, wanted = float(got[index]), float(case.expected[index])
    share = f"{int(bad.sum())} of {bad.numel()} numbers"
    if bad.ndim == 3:
        share += f", in {int(bad.any(2).any(1).sum())} of {bad.shape[0]} {case.first_axis}"
        share += f" and {int(bad.any(2).any(0).sum())} of {bad.shape[1]} heads"
    place = ", ".join(map(str, index))
    message = f"out[{place}] is {value:.6g} and must be {wanted:.6g} ({share}; {case.label})."
    rule = explain(case, got) or _from_the_log(case, got, index, launches)
    if rule:
        message += f" It looks like this: {rule}."
    figures = {"index": list(index), "got": value, "expected": wanted, "case": case.label}
    return Finding(JUDGE, False, message, figures | {"rule": rule})


def _from_the_log(
    case: Case, got: torch.Tensor, index: tuple[int, ...], launches: list[Launch]
) -> str | None:
    """A rule that the log shows to be broken, for numbers that no single mistake explains."""
    accesses = [(launch, access) for launch in launches for access in launch.accesses]
    loaded = {access.region.name for _, access in accesses}
    for name, value in case.inputs.items():
        if isinstance(value, torch.Tensor) and name not in loaded:
            return f"nothing is loaded from {name}"
    for _, access in accesses:
        live = case.live.get(access.region.name)
        if access.kind != "load" or live is None:
            continue
        place, _ = access.region.place(access.addresses)
        written = live[tuple(torch.from_numpy(i) for i in place[: live.ndim])].numpy()
        if not written.all():
            where = access.region.label(int(access.addresses[~written][0]))
            return (
                f"line {access.line} loads {where}, which no sequence has written: it lies behind the end "
                "of its sequence, or in a block of nobody. Mask it off; it may hold anything, even NaN, and "
                "0 times NaN is NaN"
            )
    if not got.isnan().any():
        return None
    strides = zip(index, got.stride(), strict=True)
    address = got.data_ptr() + sum(i * stride for i, stride in strides) * got.element_size()
    if not any(access.kind != "load" and address in access.addresses for _, access in accesses):
        return "no program stores there"
    if bare := {(launch.name, line) for launch in launches for line in launch.bare}:
        name, line = min(bare)
        return (
            f"a masked load without `other=` ({name}, line {line}) leaves anything in the lanes that are "
            "masked off, here NaN"
        )
    if own := _never_written(launches):
        return f"{own} is read where nothing has stored to it"
    return (
        "0/0 or inf-inf: a part of the keys that is empty has maximum -inf and sum 0, and where the maximum "
        "does not start at -inf, scores far below its start leave a sum of 0"
    )


def _never_written(launches: list[Launch]) -> str | None:
    """The first tensor of the kernel's own that is loaded where it was not stored before."""
    stored: set[int] = set()
    for launch in launches:
        for access in launch.accesses:
            addresses = set(access.addresses.tolist())
            if access.kind == "load" and not access.region.given and addresses - stored:
                return f"{access.region.name} ({launch.name}, line {access.line})"
            stored |= addresses
    return None
