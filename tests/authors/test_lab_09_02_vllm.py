"""Lab 09-02 beside vLLM: the recorded tokens are still true, and so is what breaks the promise of a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-09-sampling/labs/lab-02-seeds-and-neighbours"


@pytest.mark.vllm
def test_a_seed_beside_neighbours_in_vllm() -> None:
    """Seeded neighbours change nothing on a CPU; one without a seed, or a greedy one, does."""
    lab = load_module(LAB / "solution.py", "lab_09_02_beside_vllm")
    in_vllm = load_module(LAB / "in_vllm.py", "lab_09_02_in_vllm")
    recorded = in_vllm.support.recorded()
    for neighbours in in_vllm.RECORDED:
        tokens = in_vllm.play(lab.Situation(neighbours=neighbours))
        same = tokens == recorded["()"]
        assert same == (None not in neighbours and "greedy" not in neighbours), neighbours
        if same:
            assert recorded[repr(neighbours)] == tokens, "recorded.json is not what vLLM says"


@pytest.mark.vllm
def test_a_seeded_prompt_in_chunks_ends_the_cpu_engine() -> None:
    """To take a draw back it asks a CPU's generator for its offset."""
    lab = load_module(LAB / "solution.py", "lab_09_02_beside_vllm")
    in_vllm = load_module(LAB / "in_vllm.py", "lab_09_02_in_vllm")
    with pytest.raises(RuntimeError, match="offset"):
        in_vllm.play(lab.Situation(token_budget=16))


@pytest.mark.vllm
def test_the_cpu_path_alone_ignores_a_seed() -> None:
    """`forward_cpu` and `forward_native`, a generator for one of two rows."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_09_02_in_vllm")
    (cpu_alone, cpu_beside), (native_alone, native_beside) = in_vllm.direct()
    assert cpu_alone == native_alone == native_beside, "a seed's token, alone and in company"
    assert cpu_beside != cpu_alone, "forward_cpu has ignored the seed"
