"""`mini_vllm/gpu/kernels/reshape_and_cache.py` beside torch's index operations and vLLM's own kernel.

It only copies, so all three are equal to the bit. Under Triton's interpreter and, where there is one, on a
GPU; the device is the only difference.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.torch, pytest.mark.triton]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BASE: dict[str, Any] = {
    "dtype": "float32", "blocks": 5, "block_size": 16, "kv_heads": 2, "head_size": 32,
    "tokens": 19, "rows": "close", "cache": "slots first",
}  # fmt: skip
CASES = [
    BASE,
    BASE | {"padding": 6, "seed": 1},
    BASE | {"rows": "wide", "seed": 2},
    BASE | {"rows": "heads first", "cache": "heads first", "seed": 3},
    BASE | {"kv_heads": 3, "head_size": 24, "block_size": 5, "padding": 1, "seed": 4},
    BASE | {"kv_heads": 1, "head_size": 80, "block_size": 1, "blocks": 30, "seed": 5},
    BASE | {"dtype": "float16", "kv_heads": 8, "head_size": 128, "tokens": 3, "seed": 6},
    BASE | {"tokens": 4, "padding": 4, "seed": 7},
]


def child(what: str, cases: object = None, interpret: bool = True) -> Any:
    env = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    env["TRITON_INTERPRET"] = "1" if interpret else "0"
    if interpret:
        env["CUDA_VISIBLE_DEVICES"] = ""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "tests/engine/helpers/gpu/gpu_write_child.py", what],
        input=json.dumps(cases), capture_output=True, text=True, env=env, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=DEVICES)
def answer(request: pytest.FixtureRequest) -> Any:
    has_vllm = importlib.util.find_spec("vllm") is not None
    cases = [case | {"vllm": has_vllm and case["cache"] == "slots first"} for case in CASES]
    return child(request.param, cases, interpret=request.param == "cpu")


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_slot_is_written_and_no_other(number: int, answer: dict[str, Any]) -> None:
    case, found = CASES[number], answer["found"][number]
    assert found["as torch"], case
    assert found["block 0 kept"], "padding was written"
    assert found["written"] == 2 * (case["tokens"] - case.get("padding", 0)), (
        "slots of K and of V that changed"
    )


@pytest.mark.vllm
def test_as_vllms_kernel_writes(answer: dict[str, Any]) -> None:
    compared = [found["as vLLM"] for found in answer["found"] if "as vLLM" in found]
    assert len(compared) == len(CASES) - 1
    assert all(compared)


def test_inputs_that_do_not_fit_are_refused(answer: dict[str, Any]) -> None:
    said = answer["said"]
    assert "key and value have one shape" in said["shapes"]
    assert "[num_blocks, block_size, 1, 8], got [4, 16, 2, 8]" in said["heads"]
    assert "one dtype, got torch.float32" in said["dtype"]
    assert "slot_mapping is [3], got [2]" in said["slots"]


def test_programs_leave_each_other_alone_and_move_no_byte_twice() -> None:
    found = child("log")
    assert found["programs"] > 1
    assert not found["races"], found["races"][0]
    assert found["outside"] == 0
    assert found["bytes"] == found["least"]


def test_it_compiles_without_spills_and_with_wide_loads() -> None:
    rows = child("compiled", interpret=False)
    assert [row["GPU"] for row in rows] == ["sm_75", "sm_80", "sm_90", "sm_100"]
    for row in rows:
        assert (row["spills"], row["stack"]) == (0, 0), row
        assert row["wide"] > 0.5, f"{row['GPU']} loads {row['loads']}"
