"""Runs the kernels of `mini_vllm/gpu/` in a process of its own, because Triton reads TRITON_INTERPRET once.

    Child("cpu")     under Triton's interpreter
    Child("cuda")    on the GPU

`ask` sends a case and returns what was found. The cases are the same for both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]


class Child:
    """The process, and questions to it."""

    def __init__(self, device: str) -> None:
        self.device = device
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        if device == "cpu":
            # Empty, not unset: vLLM then keeps its Triton kernels although there is no driver.
            env |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, device],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **case: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that runs the kernel died; its traceback stands above"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.communicate()


# -- in the child -----------------------------------------------------------------------------------


def tensors(case: dict[str, Any], device: str) -> tuple[Any, ...]:
    """Query, caches, table and lengths; NaN in every slot that no sequence owns, nonsense in the
    table past its blocks."""
    import torch

    rng = torch.Generator().manual_seed(case.get("seed", 0))
    lens, size, kv_heads = case["lens"], case["block_size"], case["kv_heads"]
    needed = [-(-n // size) for n in lens]
    num_blocks = sum(needed) + 2
    ids = torch.randperm(num_blocks, generator=rng)
    table = torch.full((len(lens), max(needed) + 2), 2**30, dtype=torch.int32)
    shape = (num_blocks, size, kv_heads, case["head_size"])
    key, value = (torch.full(shape, float("nan")) for _ in "kv")
    for row, (length, blocks) in enumerate(zip(lens, needed, strict=True)):
        table[row, :blocks], ids = ids[:blocks], ids[blocks:]
        at = torch.arange(length)
        where = table[row, at // size].long(), at % size
        key[where], value[where] = (torch.randn(length, *shape[2:], generator=rng) for _ in "kv")
    rows = case.get("ahead", 0) + sum(case.get("queries") or [1] * len(lens))
    query = torch.randn(rows, kv_heads * case["group"], case["head_size"], generator=rng)
    query *= case.get("loud", 1)
    dtype = getattr(torch, case["dtype"])
    query, key, value = (t.to(device, dtype) for t in (query, key, value))
    if case.get("layout") == "together":  # vLLM's: one tensor [num_blocks, 2, ...]
        key, value = torch.stack([key, value], 1).unbind(1)
    elif case.get("layout") == "heads first":
        key = key.transpose(1, 2).contiguous().transpose(1, 2)
    return query, key, value, table.to(device), torch.tensor(lens, dtype=torch.int32, device=device)


def starts(case: dict[str, Any], device: str) -> Any:
    """`query_start_loc`; the rows before its first entry, `ahead` of them, belong to nobody."""
    import torch

    queries = torch.tensor(
        [case.get("ahead", 0), *(case.get("queries") or [1] * len(case["lens"]))]
    )
    return queries.cumsum(0).int().to(device)


def call(case: dict[str, Any], inputs: tuple[Any, ...], scale: float, device: str) -> Any:
    """What the case asks for: `paged_decode`, or `paged_prefill`, or the entry over both."""
    import torch

    from mini_vllm.gpu.kernels import entry, paged_decode, paged_prefill

    plan: Any = None
    if case.get("entry"):
        # Rows of a wider tensor, and NaN where nothing is stored.
        wide = torch.full((len(inputs[0]), 2, *inputs[0].shape[1:]), float("nan"), device=device)
        out = wide.to(inputs[0].dtype)[:, 0]
        keys = "num_decodes", "max_query_len", "max_seq_len"
        known = {key: case[key] for key in keys if key in case}
        same = entry.attention(*inputs, starts(case, device), scale, out=out, **known)
        assert same is out
        return out
    if "queries" in case:
        if "tile" in case:
            plan = paged_prefill.Plan(case["rows"], case["tile"], 4)
        return paged_prefill.paged_prefill(*inputs, starts(case, device), scale, plan=plan)
    if "tile" in case:
        splits = -(-max(case["lens"]) // case["keys_per_split"])
        plan = paged_decode.Plan(case["tile"], case["keys_per_split"], splits)
    return paged_decode.paged_decode(*inputs, scale, plan=plan)


def run(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Errors of a kernel against float64 and, where asked, against vLLM's kernel."""
    import torch

    from mini_vllm.gpu.attention import paged_attention

    inputs = tensors(case, device)
    before = [t.clone() for t in inputs]
    scale = case["head_size"] ** -0.5
    try:
        out = call(case, inputs, scale, device)
    except ValueError as error:
        return {"refused": str(error)}
    mine = slice(case.get("ahead", 0), None)
    same = all(
        torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(inputs, before, strict=True)
    )
    expected = paged_attention(*inputs, starts(case, device), scale)
    found = {
        "error": float((out.double() - expected)[mine].abs().nan_to_num(1e9).max()),
        "dtype": str(out.dtype).removeprefix("torch."),
        "inputs untouched": same,
    }
    if case.get("vllm") is not None:
        theirs = run_vllm(inputs, starts(case, device), scale, case["vllm"])
        found["to vLLM"] = float((out.double() - theirs.double()).abs().max())
    return found


def run_vllm(inputs: tuple[Any, ...], starts: Any, scale: float, segments: int) -> Any:
    """vLLM's Triton kernel on the same tensors: its 2D grid, or `segments` for each sequence."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    query, key, value, table, lens = inputs
    # At the pin the last tile reads the table to the tile's end, past the sequence's blocks.
    table = torch.nn.functional.pad(table, (0, 8))
    out, split = torch.empty_like(query), {}
    if segments:
        parts = (*query.shape[:2], segments)
        split = {
            "seq_threshold_3D": len(lens),
            "num_par_softmax_segments": segments,
            "softmax_segm_output": torch.zeros(*parts, query.shape[2], device=query.device),
            "softmax_segm_max": torch.zeros(*parts, device=query.device),
            "softmax_segm_expsum": torch.zeros(*parts, device=query.device),
        }
    longest = int(starts.diff().max())
    unified_attention(
        q=query, k=key, v=value, out=out, cu_seqlens_q=starts, max_seqlen_q=longest,
        seqused_k=lens, max_seqlen_k=int(lens.max()), softmax_scale=scale, causal=True,
        window_size=(-1, -1), block_table=table, softcap=0.0, q_descale=None, k_descale=None,
        v_descale=None, **split,
    )  # fmt: skip
    return out


def main(device: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(run(case, device)), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
