"""vLLM's `lora_shrink` and `lora_expand` on the cases of the problem `lora`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest import mock

import torch

from course.kernels.case import Case


def groups_of(lists: dict[str, Any], used: int) -> list[list[int]]:
    """Start and number of rows of the groups in use."""
    found: list[list[int]] = torch.stack(
        [lists["starts"][:used], lists["counts"][:used]], 1
    ).tolist()
    return found


def vllm(case: Case, segments: int, **config: int) -> torch.Tensor:
    """vLLM's `lora_shrink` (`segments` 0) or `lora_expand` (1) on a case, the other half in float64.

    `config` changes the configuration: the names are vLLM's. On the ragged cases shrink does not split the
    inputs, as in vLLM's batch-invariant mode: in the interpreter 64 times as many programs take too long.
    """
    given = case.inputs
    start = Starter(given, **(case.about["config"] | config))
    rank = given["lora_a"].shape[2]
    mid = torch.zeros(len(given["lora_a"]), len(given["x"]), rank, dtype=torch.float32)
    out: torch.Tensor = given["y"].clone()
    if segments:
        _in_float64(given, mid, None)
        start.expand(mid, out)
    else:
        start.shrink(mid)
        _in_float64(given, mid, out)
    return out


def _in_float64(given: dict[str, Any], into: torch.Tensor, out: torch.Tensor | None) -> None:
    """Without `out`, the products with A into `into`; with it, `into`'s products with B added there."""
    edges = given["slice_starts"].tolist()
    slots = given["slots"].tolist()
    used = max((g for g, slot in enumerate(slots) if slot >= 0), default=-1) + 1
    for group, (start, count) in enumerate(groups_of(given, used)):
        rows, slot = given["sorted_rows"][start : start + count].long(), slots[group]
        for piece, (left, right) in enumerate(pairwise(edges)):
            if slot >= 0 and out is None:
                of_a = given["lora_a"][piece, slot].double()
                into[piece, rows] = (given["x"][rows].double() @ of_a.T).float()
            elif slot >= 0 and out is not None:
                of_b = given["lora_b"][slot, left:right].double()
                added = out[rows, left:right].double() + into[piece, rows].double() @ of_b.T
                out[rows, left:right] = added.to(out.dtype)


class Starter:
    """Starts vLLM's kernels on these inputs.

    vLLM has a tensor for each slice, and gives its kernels their addresses; here they are views of one. What
    it keeps from call to call is made here once.
    """

    def __init__(self, given: dict[str, Any], **config: int) -> None:
        a, b, edges = given["lora_a"], given["lora_b"], given["slice_starts"].tolist()
        self.a, self.x, self.config = list(a), given["x"].contiguous(), config
        self.b = [b[:, left:right] for left, right in pairwise(edges)]
        widths = [right - left for left, right in pairwise(edges)]

        def several(numbers: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(numbers, dtype=dtype, device=a.device)

        def addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
            if len(tensors) == 1:
                return tensors[0]
            return several([tensor.data_ptr() for tensor in tensors], torch.uint64)

        self.of_a = addresses(self.a), *a[0].stride()
        same = len(set(widths)) == 1
        strides = [n if same else several([n] * len(widths)) for n in b.stride()]
        sizes = widths[0] if same else several(widths)
        begin = several(edges[:-1], torch.uint64) if len(widths) > 1 else 0
        self.of_b = begin, addresses(self.b), *strides, sizes, same, max(widths)
        none = max(given["slots"].tolist()) < 0
        self.lists = [
            torch.empty(len(self.x)), given["sorted_rows"], given["counts"], given["starts"],
            given["slots"], torch.tensor([none]), torch.tensor([len(given["slots"])]),
        ]  # fmt: skip

    def shrink(self, mid: torch.Tensor) -> None:
        """Store the products with A in `mid`."""
        from vllm.lora.ops.triton_ops import lora_shrink_op as op

        run: Any = getattr(op._lora_shrink, "__wrapped__", op._lora_shrink)
        with (
            mock.patch.object(op, "_get_lora_a_ptr", return_value=self.of_a),
            mock.patch.object(op, "get_lora_op_configs", self._configure),
        ):
            run(self.x, self.a, mid, *self.lists, 1.0)

    def expand(self, mid: torch.Tensor, out: torch.Tensor) -> None:
        """Add the products of `mid` with B to `out`."""
        from vllm.lora.ops.triton_ops import lora_expand_op as op

        run: Any = getattr(op._lora_expand, "__wrapped__", op._lora_expand)
        with (
            mock.patch.object(op, "_get_lora_b_ptr", return_value=self.of_b),
            mock.patch.object(op, "get_lora_op_configs", self._configure),
        ):
            run(mid, self.b, out, *self.lists, 0, True)

    def _configure(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        from vllm.lora.ops.triton_ops.utils import get_lora_op_configs

        found: dict[str, Any] = get_lora_op_configs(*args, **kwargs)
        return found | self.config
