"""Lab 11-02: the bench's lists beside vLLM's, the mistakes that it names, and the programs that have work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.triton]


@pytest.mark.vllm
def test_the_lists_are_those_that_vllm_makes() -> None:
    import torch
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta

    from course.kernels.problems.lora import sort_rows

    rng = torch.Generator().manual_seed(0)
    for slots, rows in ((1, 1), (4, 30), (8, 9), (3, 200)):
        meta = LoRAKernelMeta.make(slots, rows, "cpu")
        slot_of = torch.randint(-1, slots, (rows,), generator=rng)
        slot_of[0] = 0
        meta.prepare_tensors(slot_of)
        mine = sort_rows(slot_of, slots)
        theirs = {
            "sorted_rows": meta.token_indices_sorted_by_lora_ids,
            "counts": meta.num_tokens_per_lora,
            "starts": meta.lora_token_start_loc,
            "slots": meta.active_lora_ids,
        }
        for name, tensor in theirs.items():
            assert torch.equal(mine[name], tensor), (name, slots, rows)


def test_every_known_mistake_is_named_in_a_case_that_vllm_runs_too() -> None:
    """If only by a smaller tile. Those whose numbers are NaN are found by the bench's log."""
    from course.kernels.beside import CASES
    from course.kernels.problems import lora

    cases = lora.cases()[:CASES]
    unseen = []
    for words, wrong in lora.MISTAKES:
        made = [lora.answer(case.inputs, **wrong)[0] for case in cases]
        named = [lora.explain(case, got) for case, got in zip(cases, made, strict=True)]
        if not any(named) and all(bool(got.isfinite().all()) for got in made):
            unseen.append(words)
    assert not unseen, unseen


COUNT = """
import sys
sys.path.insert(0, "tests/authors")
import torch
from course.kernels.problems.lora import sort_rows
from course.kernels.record import Recorder
from course.learner.labs import load_module
from pathlib import Path
lab = load_module(Path(sys.argv[1]), "counted")
slot_of = torch.tensor([-1] * 4 + [0] * 2 + [1] * 35 + [3])
lists = sort_rows(slot_of, 4)
widths = [4096, 1024, 1024]
edges = torch.tensor([0, 4096, 5120, 6144], dtype=torch.int32)
given = dict(y=torch.zeros(42, 6144), x=torch.zeros(42, 16), lora_a=torch.zeros(3, 4, 8, 16),
             lora_b=torch.zeros(4, 6144, 8), slice_starts=edges, **lists)
recorder = Recorder(given)
with recorder.watching():
    lab.add_lora(given["y"], given["x"], given["lora_a"], given["lora_b"], edges, widths, *lists.values())
told = lab.predictions()
assert told["lists"] == tuple(lists[n][:4].tolist() for n in ("slots", "counts", "starts")), lists
for name, launch, weights in zip(("shrink", "expand"), recorder.launches[1:], ("lora_a", "lora_b")):
    x, y, z = launch.grid
    working = {a.program for a in launch.accesses if a.region.name == weights}
    assert told[name] == (x * y * z, len(working)), (name, launch.grid, len(working))
"""


def test_the_predicted_programs_are_those_that_work() -> None:
    lab = ROOT / "phase-11-multi-lora" / "labs" / "lab-02-triton-lora" / "solution.py"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", COUNT, str(lab)]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-1500:]
