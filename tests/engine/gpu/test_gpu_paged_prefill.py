"""`paged_prefill.py` and `entry.py` of `mini_vllm/gpu/kernels/` against float64 and vLLM's own Triton kernel.

As in `test_gpu_paged_decode.py`: under Triton's interpreter and, where there is one, on a GPU.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.helpers.gpu.gpu_child import Child

pytestmark = [pytest.mark.torch, pytest.mark.triton]
TOLERANCE = {"float32": 4e-6, "float16": 3e-3}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# A whole prompt, a chunk that starts mid-sequence, a chunk of one token.
BASE: dict[str, Any] = {
    "lens": [37, 90, 70],
    "queries": [37, 21, 1],
    "group": 2,
    "kv_heads": 2,
    "head_size": 64,
    "block_size": 16,
    "dtype": "float32",
}
# Decodes first.
MIXED = BASE | {"lens": [70, 1, 200, 40, 90], "queries": [1, 1, 1, 40, 21], "entry": True}


@pytest.fixture(scope="module", params=DEVICES)
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    child = Child(request.param)
    yield child
    child.close()


def check(found: dict[str, Any], case: dict[str, Any]) -> None:
    assert "refused" not in found, f"{case}: {found}"
    assert found["error"] < TOLERANCE[case["dtype"]], f"{case}: wrong by {found['error']:.1e}"
    assert found["dtype"] == case["dtype"], case
    assert found["inputs untouched"], case


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    lens = draw(st.lists(st.integers(1, 120), min_size=1, max_size=3))
    return {
        "lens": lens,
        "queries": [draw(st.integers(0 if i else 1, min(n, 60))) for i, n in enumerate(lens)],
        "ahead": draw(st.sampled_from([0, 0, 5, 40])),
        "group": draw(st.sampled_from([1, 2, 4, 7, 8])),
        "kv_heads": draw(st.integers(1, 2)),
        "head_size": draw(st.sampled_from([32, 64, 80, 96])),
        "block_size": draw(st.sampled_from([1, 8, 16, 24, 64])),
        "dtype": draw(st.sampled_from(["float32", "float16"])),
        "layout": draw(st.sampled_from(["apart", "together", "heads first"])),
        "tile": draw(st.sampled_from([16, 32, 64])),
        "rows": draw(st.sampled_from([16, 32, 64])),
        "seed": draw(st.integers(0, 100)),
    }


@settings(max_examples=12)
@given(case=cases())
def test_any_shape_agrees_with_float64(child: Child, case: dict[str, Any]) -> None:
    """Chunks, groups that do not divide the rows, block sizes beside tiles; unowned slots hold NaN."""
    check(child.ask(**case), case)


@pytest.mark.vllm
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_agrees_with_vllms_kernel(child: Child, dtype: str) -> None:
    case = BASE | {"dtype": dtype, "vllm": 0, "layout": "together", "tile": 32, "rows": 64}
    found = child.ask(**case)
    check(found, case)
    # On a GPU vLLM's tl.dot rounds float32 to 10 bits (tf32); the interpreter does not.
    most = 3e-3 if child.device == "cuda" else TOLERANCE[dtype]
    assert found["to vLLM"] < most, f"{case}: {found['to vLLM']:.1e} from vLLM's kernel"


@pytest.mark.parametrize("length", [31, 32, 33, 64, 65])
def test_the_frontier_beside_the_tile(child: Child, length: int) -> None:
    """A context that ends just before, at and behind a tile's edge, where the masked tiles begin."""
    case = BASE | {"lens": [length], "queries": [min(length, 33)], "tile": 32, "rows": 32}
    check(child.ask(**case), case)


def test_large_scores_do_not_overflow(child: Child) -> None:
    case = BASE | {"loud": 100, "tile": 16, "rows": 32}
    found = child.ask(**case)
    assert found["error"] < 2e-3, found  # float32 scores of 300 are good to 2e-5


def test_the_plan_of_its_own(child: Child) -> None:
    case = BASE | {"lens": [150, 3], "queries": [70, 3], "dtype": "float16", "group": 4}
    check(child.ask(**case), case)


@pytest.mark.parametrize("num_decodes", [0, 2, 3])
def test_a_mixed_batch(child: Child, num_decodes: int) -> None:
    """Decodes that the caller does not name go through the prefill kernel, and come out the same."""
    case = MIXED | {"num_decodes": num_decodes, "max_query_len": 40, "max_seq_len": 200}
    check(child.ask(**case), case)


@pytest.mark.vllm
def test_a_mixed_batch_agrees_with_vllms_one_launch(child: Child) -> None:
    case = MIXED | {"num_decodes": 3, "vllm": 0, "dtype": "float16"}
    found = child.ask(**case)
    check(found, case)
    assert found["to vLLM"] < TOLERANCE["float16"], found


def test_a_batch_of_decodes_alone(child: Child) -> None:
    """Nothing says so but the count of the tokens."""
    case = MIXED | {"lens": [200, 1, 33], "queries": [1, 1, 1]}
    check(child.ask(**case), case)


def test_decodes_that_are_none_are_refused(child: Child) -> None:
    found = child.ask(**MIXED, num_decodes=6)
    assert found == {"refused": "num_decodes is from 0 to the 5 sequences and 64 tokens, got 6"}, (
        found
    )


@pytest.mark.vllm
def test_segments_are_used_where_vllm_uses_them() -> None:
    """The threshold and the rule for it, read in vLLM's file: to import it takes a minute."""
    from mini_vllm.gpu.kernels import entry

    [folder] = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr,misc]
    file = Path(folder) / "v1" / "attention" / "backends" / "triton_attn.py"
    assigned = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in reversed([*ast.walk(ast.parse(file.read_text(encoding="utf-8")))])
        if isinstance(node, ast.Assign)
    }
    assert assigned["MIN_LAUNCH_GRID_SIZE_2D"] == str(entry.MIN_LAUNCH_GRID_SIZE_2D)
    assert assigned["self.seq_threshold_3D"] == "MIN_LAUNCH_GRID_SIZE_2D // self.num_heads_kv"


@pytest.mark.parametrize("kv_heads", [1, 2, 8, 32])
def test_few_decodes_are_segmented(kv_heads: int) -> None:
    from mini_vllm.gpu.kernels import entry

    assert entry.segmented(128 // kv_heads, kv_heads)
    assert not entry.segmented(128 // kv_heads + 1, kv_heads)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"starts": "int64"}, "query_start_loc is int32"),
        ({"starts_shape": (2, 2)}, r"query_start_loc is \[num_seqs \+ 1\]"),
        ({"lens": 2}, "for 3 sequences"),
        ({"out": "float16"}, "out is like the query"),
        ({"scale": 0.0}, "scale is positive, got 0.0"),
        ({"rows": 2}, "2 rows has no room for 4 query heads"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    """In a process that has no GPU and no interpreter: nothing is launched."""
    torch = pytest.importorskip("torch")
    from mini_vllm.gpu.kernels.paged_prefill import Plan, paged_prefill

    query = torch.zeros(9, 8, 64)
    cache = torch.zeros(5, 16, 2, 64)
    table = torch.zeros(3, 2, dtype=torch.int32)
    lens = torch.full((change.get("lens", 3),), 9, dtype=torch.int32)
    starts = torch.zeros(
        change.get("starts_shape", (4,)), dtype=getattr(torch, change.get("starts", "int32"))
    )
    out = torch.zeros(9, 8, 64, dtype=getattr(torch, change.get("out", "float32")))
    plan, scale = Plan(change.get("rows", 64), 16, 4), change.get("scale", 0.1)
    with pytest.raises(ValueError, match=words):
        paged_prefill(query, cache, cache, table, lens, starts, scale, plan=plan, out=out)


def test_the_plan_fills_a_gpu() -> None:
    from mini_vllm.gpu.kernels.paged_prefill import plan_prefill

    long = plan_prefill(8192, 32, 8, 128, 2, 8192)
    assert (long.rows, long.tile) == (128, 64)
    assert plan_prefill(8192, 32, 8, 256, 2, 8192).rows == 64, "the accumulator keeps its size"
    assert plan_prefill(8192, 32, 8, 128, 2, 8192, capability=75).rows == 32
    assert plan_prefill(8192, 32, 8, 128, 4, 8192).rows == 16, "float32 has no tensor cores here"
    assert plan_prefill(3, 32, 8, 128, 2, 3).rows == 16, "three tokens of four heads fill 12 rows"
    assert plan_prefill(500, 71, 1, 64, 2, 500).rows == 128, "71 heads share a KV head"
    short = plan_prefill(256, 32, 8, 128, 2, 256)
    assert short.rows == 64, "of 128 rows there would be 64 programs for 132 multiprocessors"


def test_work_is_counted_over_visible_keys() -> None:
    pytest.importorskip("torch")
    from mini_vllm.gpu.attention import least_bytes, least_flops

    assert least_flops([1000], [1000], 1, 1) == 4 * 500_500
    assert least_flops([10, 7], [3, 1], 2, 8) == 4 * 8 * 2 * (8 + 9 + 10 + 7)
    prompt = least_bytes([64], 4, 2, 32, 16, 2, [64])
    assert prompt == 2 * 64 * 2 * 32 * 2 + 2 * 64 * 4 * 32 * 2 + 4 * 4 + 4 * 3
