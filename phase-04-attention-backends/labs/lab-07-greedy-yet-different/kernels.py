"""Lab 04-07: vLLM's own Triton kernels, ordinary and batch-invariant, on growing batches. No GPU.

    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/kernels.py [--record]

Runs the kernels of the installed vLLM 0.22.1 under Triton's interpreter, and compares the bits of one row
or request
when others stand beside it: attention with the choice of the launcher and with that choice forbidden, the
persistent product and the norm of `batch_invariant.py`. The interpreter computes a tile's product with
numpy, so this shows what is cut where, and not what a tensor core does with it. `--record` writes
pin.json, which the tests read, with the launcher's choice in 48 cases, and what the backends and layers of
the pin say of batch invariance.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"}

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

RECORD = HERE / "pin.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
HEAD_SIZE, BLOCK_SIZE, SEGMENTS = 32, 16, 16


def decode_arguments(
    seq_lens: list[int], num_kv_heads: int, max_query_len: int = 1
) -> dict[str, Any]:
    """What vLLM's Triton backend hands to `unified_attention`; the first request is the same in every
    batch.
    """
    import torch

    num_heads, needs = 2 * num_kv_heads, [-(-n // BLOCK_SIZE) for n in seq_lens]
    table = torch.zeros(len(seq_lens), max(needs), dtype=torch.int32)
    parts, first = [], 0
    for i, need in enumerate(needs):
        made = torch.Generator().manual_seed(i)
        parts.append(torch.randn(2, need, BLOCK_SIZE, num_kv_heads, HEAD_SIZE, generator=made))
        table[i, :need] = torch.arange(first, first + need)
        first += need
    key, value = torch.cat(parts, dim=1)
    rows = len(seq_lens) * max_query_len
    query = torch.stack(
        [
            torch.randn(num_heads, HEAD_SIZE, generator=torch.Generator().manual_seed(1000 + i))
            for i in range(rows)
        ]
    )
    return {
        "q": query,
        "k": key.contiguous(),
        "v": value.contiguous(),
        "out": torch.full_like(query, float("nan")),
        "cu_seqlens_q": torch.arange(len(seq_lens) + 1, dtype=torch.int32) * max_query_len,
        "max_seqlen_q": max_query_len,
        "seqused_k": torch.tensor(seq_lens, dtype=torch.int32),
        "max_seqlen_k": max(seq_lens),
        "softmax_scale": HEAD_SIZE**-0.5,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": table,
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
        "seq_threshold_3D": 128 // num_kv_heads,
        "num_par_softmax_segments": SEGMENTS,
        "softmax_segm_output": torch.zeros(rows, num_heads, SEGMENTS, HEAD_SIZE),
        "softmax_segm_max": torch.zeros(rows, num_heads, SEGMENTS),
        "softmax_segm_expsum": torch.zeros(rows, num_heads, SEGMENTS),
    }


def attention(seq_lens: list[int], num_kv_heads: int, invariant: bool) -> Any:
    """The first request's result, `[num_heads, HEAD_SIZE]`."""
    from vllm.v1.attention.ops import triton_unified_attention as ops

    ops.is_batch_invariant = (
        invariant  # what VLLM_BATCH_INVARIANT=1 sets when the module is imported
    )
    arguments = decode_arguments(seq_lens, num_kv_heads)
    ops.unified_attention(**arguments)
    return arguments["out"][0]


class Launches(list[Any]):
    """Stands where the kernel stands and writes down how it would be launched."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_args, **named: self.append((grid, named))


def launch(num_seqs: int, max_query_len: int, num_kv_heads: int, invariant: bool) -> list[int]:
    """`[segments, tile]` of the launcher's choice; no kernel runs."""
    from vllm.v1.attention.ops import triton_unified_attention as ops

    kept = ops.kernel_unified_attention, ops.reduce_segments
    seen = Launches()
    ops.kernel_unified_attention, ops.reduce_segments = seen, Launches()
    ops.is_batch_invariant = invariant
    try:
        ops.unified_attention(**decode_arguments([40] * num_seqs, num_kv_heads, max_query_len))
    finally:
        ops.kernel_unified_attention, ops.reduce_segments = kept
    [(grid, named)] = seen
    return [grid[2] if len(grid) == 3 else 1, named["TILE_SIZE"]]


def launches() -> list[dict[str, Any]]:
    """The launcher's choice, around each threshold."""
    cases = itertools.product((1, 2, 4, 8), (1, 3), (False, True))
    made = []
    for num_kv_heads, max_query_len, invariant in cases:
        most = 128 // num_kv_heads
        for num_seqs in (1, most, most + 1):
            segments, tile = launch(num_seqs, max_query_len, num_kv_heads, invariant)
            case = (num_seqs, max_query_len, num_kv_heads, invariant, segments, tile)
            names = (
                "num_seqs",
                "max_query_len",
                "num_kv_heads",
                "batch_invariant",
                "segments",
                "tile",
            )
            made.append(dict(zip(names, case, strict=True)))
    return made


def rows_that_change(
    function: Any, rows: int, sizes: tuple[int, ...], inputs: Any
) -> dict[str, int]:
    """For each batch size: how many of the first `rows` rows have other bits than alone."""
    alone = [function(inputs[i : i + 1])[0] for i in range(rows)]
    told = {}
    for n in sizes:
        got = function(inputs[:n])
        told[str(n)] = sum(not bool((got[i] == alone[i]).all()) for i in range(min(rows, n)))
    return told


def products_and_norms() -> dict[str, dict[str, int]]:
    """torch's product on this CPU beside vLLM's persistent one; vLLM's invariant norm."""
    import torch
    from vllm.model_executor.layers import batch_invariant as ops

    ops.num_compute_units = lambda _index=None: 4  # it asks the device, and there is none
    made = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=made) for shape in ((140, 384), (384, 96)))
    gain = torch.ones(384)
    sizes = (2, 5, 17, 140)
    return {
        "torch.mm": rows_that_change(lambda a: a @ weight, 5, sizes, x),
        "matmul_persistent": rows_that_change(
            lambda a: ops.matmul_persistent(a, weight), 5, sizes, x
        ),
        "rms_norm_batch_invariant": rows_that_change(
            lambda a: ops.rms_norm_batch_invariant(a, gain), 5, sizes, x
        ),
    }


def seventeenth() -> dict[str, Any]:
    """A decode over 300 tokens on 8 KV heads, alone, as one of 16, and as one of 17."""
    told: dict[str, Any] = {}
    for invariant in (False, True):
        alone = attention([300], 8, invariant)
        for others in (15, 16):
            got = attention([300] + [20] * others, 8, invariant)
            name = f"{'invariant' if invariant else 'ordinary'}, beside {others}"
            differ = int((got != alone).sum())
            told[name] = {
                "differ": differ,
                "of": got.numel(),
                "by": float((got - alone).abs().max()),
            }
    return told


def admitted() -> dict[str, bool]:
    """What each attention backend of the pin says to `supports_batch_invariance`, by its name."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    told = {}
    for name, member in AttentionBackendEnum.__members__.items():
        try:
            told[name] = bool(member.get_class().supports_batch_invariance())
        except Exception:  # a backend whose own kernels are not in this build
            continue
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write pin.json")
    args = parser.parse_args()
    import torch
    import triton
    import vllm

    capture = load_module(HERE / "capture.py", "lab_04_07_capture")
    record = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "hardware": capture.processor(),
        "versions": {
            "vllm": vllm.__version__,
            "torch": torch.__version__.partition("+")[0],
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "seventeenth": seventeenth(),
        "rows": products_and_norms(),
        "launches": launches(),
        "admitted": admitted(),
    }
    if args.record:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("a decode over 300 tokens, 8 KV heads, vLLM's Triton attention")
    for name, said in record["seventeenth"].items():
        print(
            f"  {name:24}{said['differ']:4} of {said['of']} numbers have other bits than alone, by "
            f"{said['by']:.0e}"
        )
    print("rows of 5 that have other bits than alone, by the size of the batch")
    for name, said in record["rows"].items():
        print(f"  {name:26}" + "".join(f"{n:>5}: {count}" for n, count in said.items()))
    yes = [name for name, says in record["admitted"].items() if says]
    print(f"backends that admit it: {', '.join(yes)} (of {len(record['admitted'])} asked)")


if __name__ == "__main__":
    run_script(main)
