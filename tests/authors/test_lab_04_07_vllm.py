"""Lab 04-07: its committed results, and the same asked of the real vLLM, live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_04_07_vllm.py

holds a learner's `launch` against the launcher of the vLLM that is installed. Without LAB_IMPL the
reference is held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module, load_support

ROOT = Path(__file__).resolve().parents[2]
[LAB] = (ROOT / "phase-04-attention-backends" / "labs").glob("lab-07-*")
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
RESULTS = ("flips", "ties", "vllm", "pin")


@pytest.fixture(scope="module")
def support() -> ModuleType:
    return load_support(LAB / "test_lab.py")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    named = {"solution": LAB / "solution.py", "starter": LAB / "starter.py"}
    return load_module(named.get(CHOICE, Path(CHOICE)), "lab_04_07_live")


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_how_it_was_made(support: ModuleType, name: str) -> None:
    """Command, date, hardware and versions, and no place of the machine it was made on."""
    made = support.captured(name)
    assert made["command"].startswith(f"python {LAB.relative_to(ROOT)}/")
    assert made["command"].endswith(" --record")
    assert made["versions"]["python"]
    assert {"date", "hardware"} <= made.keys()
    text = json.dumps(made)
    for word in (str(Path.home()), str(ROOT), "/tmp/", "127.0.0.1"):
        assert word not in text, word


def test_the_machine_on_paper_looks_at_the_batch(support: ModuleType) -> None:
    """Ida's logits differ beside others and in chunks, by rounding alone: it is worth its name."""
    encode = support.tokenizer().encode
    machine = support.rebuilt(
        support.model(), load_module(LAB / "machine.py", "lab_04_07_machine_tested")
    )
    ida = encode("The scheduler decides who ru", True)
    others = [encode(text, True) for text in ("Who waits", "KV", "A block is 16 tokens")]
    desk = support.Desk(machine, 16)
    alone = desk.logits([desk.seat(ida)])[0]
    desk = support.Desk(machine, 16)
    beside = desk.logits([desk.seat(ida), *[desk.seat(tokens) for tokens in others]])[0]
    assert support.bits(alone) != support.bits(beside)
    assert abs(alone - beside).max() < 1e-3
    desk = support.Desk(support.model(), 16)
    assert abs(alone - desk.logits([desk.seat(ida)])[0]).max() < 1e-3


def test_a_tie_that_flips_is_nearer_than_the_noise(support: ModuleType, lab: ModuleType) -> None:
    """What search.py found: where a token changed, twice the noise was more than the margin."""
    ties = support.captured("ties")["ties"]
    flipped = [t["decode"] for t in ties if len(set(t["decode"]["tokens"])) > 1]
    assert flipped
    for tie in flipped:
        assert tie["margin"] <= 2 * tie["noise"]


def test_rounding_to_sixteen_bits(support: ModuleType) -> None:
    """To the nearest, ties to even, as numpy's own float16 has it; bfloat16 keeps 8 bits."""
    import numpy as np

    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, 0, -2.5], np.float32)
    want = np.array([1, 1, 1 + 2**-6, -1, 0, -2.5], np.float32)
    assert support.cut(x, "bfloat16").tolist() == want.tolist()
    assert (support.cut(x[:4], "float16") == x[:4].astype(np.float16)).all()
    with pytest.raises(ValueError, match="'fp8'"):
        support.cut(x, "fp8")


def child(code: str, **environment: str) -> Any:
    """What `code` prints as JSON in a process that has the lab's `kernels.py` as `kernels`."""
    start = (
        "import json, sys\nfrom pathlib import Path\nfrom course.learner.labs import load_module\n"
        f"kernels = load_module(Path({str(LAB / 'kernels.py')!r}), 'lab_04_07_kernels')\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment
    done = subprocess.run(
        [sys.executable, "-c", start + code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.vllm
@pytest.mark.triton
def test_the_launcher_live(support: ModuleType) -> None:
    """48 cases asked of the installed launcher: as committed, and as `launch` says."""
    launcher = load_module(LAB / "launcher.py", "lab_04_07_launcher_live")
    live = child("print(json.dumps(kernels.launches()))")
    assert live == support.captured("pin")["launches"]
    for line in live:
        case = [line[k] for k in ("num_seqs", "max_query_len", "num_kv_heads", "batch_invariant")]
        assert tuple(launcher.launch(*case)) == (line["segments"], line["tile"]), line


@pytest.mark.vllm
@pytest.mark.triton
def test_vllms_kernels_to_the_bit(support: ModuleType) -> None:
    """In the interpreter: the 17th request changes the order, and no request does where that is asked for;
    the persistent product and the norm know no batch."""
    live = child(
        "print(json.dumps([kernels.seventeenth(), kernels.products_and_norms(), kernels.admitted()]))"
    )
    attention, rows, admitted = live
    assert attention["ordinary, beside 15"]["differ"] == 0
    assert attention["ordinary, beside 16"]["differ"] > 100
    assert attention["invariant, beside 15"]["differ"] == 0
    assert attention["invariant, beside 16"]["differ"] == 0
    for name in ("matmul_persistent", "rms_norm_batch_invariant"):
        assert not any(rows[name].values()), (name, rows[name])
    assert admitted == support.captured("pin")["admitted"]


@pytest.mark.vllm
def test_real_vllm_parts_in_a_decode(support: ModuleType) -> None:
    """On a CPU, with VLLM_BATCH_INVARIANT=1 as without, in float32. Whether her prefill parts as well
    depends on the processor: with AVX-512 it did not, with AVX2 alone it did, by rounding."""
    import torch

    capture = load_module(LAB / "capture.py", "lab_04_07_capture_live")
    if torch.cuda.is_available():
        pytest.skip("the committed capture is of the CPU build")
    runs = [
        capture.run(capture.RUNS[name], "float32")
        for name in ("as it comes", "VLLM_BATCH_INVARIANT=1")
    ]
    plain, asked = (said["found"] for said in runs)
    assert plain == asked
    if runs[0]["threads"] < 2:
        pytest.skip("one thread has nothing to share")
    assert plain["prefill, 1 beside her"]["logits_by"] < 1e-3
    assert 0 < plain["decode, 1 beside her"]["logits_by"] < 1e-3
