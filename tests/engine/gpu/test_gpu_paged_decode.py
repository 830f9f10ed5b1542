"""`mini_vllm/gpu/kernels/paged_decode.py` against float64 and against vLLM's own Triton kernel.

Each test runs under Triton's interpreter and, where there is one, on a GPU; the device is the only
difference. bfloat16 is left to `benchmarks/attention.py` on a GPU: the interpreter's `tl.dot` multiplies its
bit patterns.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.helpers.gpu.gpu_child import Child

pytestmark = [pytest.mark.torch, pytest.mark.triton]
TOLERANCE = {"float32": 4e-6, "float16": 3e-3}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BASE: dict[str, Any] = {
    "lens": [70, 1, 33],
    "group": 2,
    "kv_heads": 2,
    "head_size": 64,
    "block_size": 16,
    "dtype": "float32",
}


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
    tile = draw(st.sampled_from([16, 32, 64]))
    return {
        "lens": draw(st.lists(st.integers(1, 200), min_size=1, max_size=3)),
        "group": draw(st.sampled_from([1, 2, 4, 7, 8])),
        "kv_heads": draw(st.integers(1, 2)),
        "head_size": draw(st.sampled_from([32, 64, 96, 128])),
        "block_size": draw(st.sampled_from([1, 8, 16, 24, 64])),
        "dtype": draw(st.sampled_from(["float32", "float16"])),
        "layout": draw(st.sampled_from(["apart", "together", "heads first"])),
        "tile": tile,
        "keys_per_split": tile * draw(st.sampled_from([1, 2, 100])),
        "seed": draw(st.integers(0, 100)),
    }


@settings(max_examples=12)
@given(case=cases())
def test_any_shape_agrees_with_float64(child: Child, case: dict[str, Any]) -> None:
    """Ragged lengths, groups, block sizes beside tiles, splits; unowned slots hold NaN."""
    check(child.ask(**case), case)


@pytest.mark.vllm
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("segments", [0, 8], ids=["2D", "segmented"])
def test_agrees_with_vllms_kernel(child: Child, segments: int, dtype: str) -> None:
    case = BASE | {"dtype": dtype, "vllm": segments, "layout": "together"}
    if segments:
        case |= {"tile": 16, "keys_per_split": 32}
    found = child.ask(**case)
    check(found, case)
    # On a GPU vLLM's tl.dot rounds float32 to 10 bits (tf32); the interpreter does not.
    most = 3e-3 if child.device == "cuda" else TOLERANCE[dtype]
    assert found["to vLLM"] < most, f"{case}: {found['to vLLM']:.1e} from vLLM's kernel"


@pytest.mark.parametrize("keys_per_split", [16, 48, 80, 1600])
def test_the_splits_do_not_change_the_result(child: Child, keys_per_split: int) -> None:
    """One split, a ragged last one, sequences with fewer splits than others, more than a chunk of 16."""
    case = BASE | {"lens": [300, 16, 17], "tile": 16, "keys_per_split": keys_per_split}
    check(child.ask(**case), case)


def test_large_scores_do_not_overflow(child: Child) -> None:
    """Scores of some hundreds: the maximum must come off before the power, in each split and in the merge."""
    case = BASE | {"loud": 100, "tile": 16, "keys_per_split": 32}
    found = child.ask(**case)
    assert found["error"] < 2e-3, (
        found
    )  # float32 scores of 300 are good to 2e-5, which exp multiplies


def test_the_plan_of_its_own(child: Child) -> None:
    case = BASE | {"lens": [400, 3], "dtype": "float16", "group": 4}
    check(child.ask(**case), case)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_head": 32}, "head size"),
        ({"heads": 3}, "3 query heads cannot share 2 KV heads"),
        ({"query": "float16"}, "one dtype"),
        ({"table": "int64"}, "block_table is int32"),
        ({"lens": 2}, "seq_lens"),
        ({"strided": True}, "the last axis of key_cache has stride 1, got 2"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    """In a process that has no GPU and no interpreter: nothing is launched."""
    torch = pytest.importorskip("torch")
    from mini_vllm.gpu.kernels.paged_decode import paged_decode

    query = torch.zeros(
        3, change.get("heads", 4), 64, dtype=getattr(torch, change.get("query", "float32"))
    )
    key = torch.zeros(5, 16, 2, change.get("key_head", 64))
    if change.get("strided"):
        key = torch.zeros(5, 16, 2, 128)[..., ::2]
    table = torch.zeros(3, 2, dtype=getattr(torch, change.get("table", "int32")))
    lens = torch.ones(change.get("lens", 3), dtype=torch.int32)
    with pytest.raises(ValueError, match=words):
        paged_decode(query, key, key, table, lens, 0.1)


def test_the_plan_fills_a_gpu_and_keeps_its_bytes() -> None:
    from mini_vllm.gpu.kernels.paged_decode import plan_decode

    long = plan_decode(8, 32, 8, 128, 2, 32_768)
    assert long.tile * 128 * 2 == 16384
    programs = 8 * 8 * long.num_splits
    assert programs * 1.1 >= 8 * 132, f"{programs} programs for 132 multiprocessors"
    part = 2 * 4 * (128 + 2) * 4 / (2 * long.keys_per_split * 128 * 2)
    assert part < 0.01, f"the splits' results are {part:.1%} of the bytes of K and V"
    short = plan_decode(1, 32, 8, 128, 2, 8192)
    assert short.num_splits * 8 >= 2 * 132 * 0.9, "a lone sequence is split until the GPU is busy"
    assert plan_decode(64, 32, 8, 128, 2, 128).num_splits == 1
    assert plan_decode(8, 32, 8, 128, 2, 32_768, capability=75).tile == 16


def test_importing_the_wing_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, mini_vllm, mini_vllm.gpu, mini_vllm.gpu.kernels\n"
        "print({'torch', 'triton'} & {*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "set()", ran.stdout + ran.stderr
