"""Lab 05-05: launches in Inductor's output, the cost of an operator and how operators are watched, as the
lab gives them."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-05-cuda-graphs/labs/lab-05-graph-vs-eager-real"
support = load_module(LAB / "support.py", "test_lab_05_05_support")

ON_A_CPU = '''
cpp_fused_add_mul_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r"""
    extern "C" void kernel(const float* in_ptr0, float* out_ptr0) {}
""")
cpp_fused_silu_1 = async_compile.cpp_pybinding(['float*'], r"""
    // extern_kernels.mm(buf0) comes before
""")

class Runner:
    def recursively_apply_fns(self, fns):
        extern_kernels.mm(never, called)

    def call(self, args):
        arg0_1, arg1_1 = args
        assert_size_stride(arg0_1, (1, 128), (128, 1))
        buf0 = empty_strided_cpu((1, 128), (128, 1), torch.float32)
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.mm]
        extern_kernels.mm(arg0_1, reinterpret_tensor(arg1_1, (128, 128), (1, 128), 0), out=buf0)
        # cpp_fused_add_mul_0(buf9) was here once
        cpp_fused_add_mul_0(buf0, arg0_1)
        buf1 = buf0; del buf0  # reuse
        buf2 = torch.ops.aten._scaled_dot_product(buf1)
        buf3 = buf2[0]
        assert_size_stride(buf3, (1, 128), (128, 1), 'torch.ops.aten._scaled_dot_product')
        torch.ops._C.onednn_mm.default(buf3, buf1, None, arg1_1)

        cpp_fused_silu_1(buf3)
        cpp_fused_add_mul_0(buf3, buf1)
        return (buf3, )

runner = Runner(partitions=[])
call = runner.call

def benchmark_compiled_module(times=10):
    extern_kernels.mm(rand, rand)
    cpp_fused_silu_1(rand)
'''
ON_A_GPU = """
triton_poi_fused_silu_0 = async_compile.triton('triton_poi_fused_silu_0', device_str='cuda')

def call(args):
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        stream0 = get_raw_stream(0)
        triton_red_fused_rms_norm_1.run(arg0_1, buf0, 1, 2048, stream=stream0)
        extern_kernels.mm(buf0, arg1_1, out=buf1)
        triton_poi_fused_silu_0.run(buf1, 128, stream=stream0)
        triton_poi_fused_silu_0.run(buf1, 128, stream=stream0)
    return (buf1, )

def benchmark():
    triton_poi_fused_silu_0.run(buf1, 128)
"""


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_05_05_starter")


def test_launches_are_calls(lab: ModuleType) -> None:
    """Fused and library kernels of `call`; definitions, comments and what stands below it do not count."""
    fused, library = lab.count_launches(ON_A_CPU)
    assert fused == 3, (
        f"`call` starts fused kernels on 3 lines, one of the kernels twice; you count {fused}. "
        f"A definition, a comment and the benchmark below start nothing in a step"
    )
    assert library == 3, (
        f"`call` starts library kernels on 3 lines: extern_kernels.mm, one torch.ops with a result in "
        f"front and one without; you count {library}. A name in a string or in another function is no call"
    )


def test_launches_on_a_gpu(lab: ModuleType) -> None:
    """There Inductor writes Triton, a kernel is started by `.run`, and the lines stand inside of a `with`."""
    got = tuple(lab.count_launches(ON_A_GPU))
    assert got == (3, 1), (
        f"three launches of Triton kernels and one product are Launches(3, 1), not {got}"
    )


def test_the_first_line_of_call_counts(lab: ModuleType) -> None:
    """Nothing need come before the first launch, or behind `call`."""
    code = "def call(args):\n    cpp_fused_a_0(args[0])\n    cpp_fused_b_1(args[0])"
    got = tuple(lab.count_launches(code))
    assert got == (2, 0), f"two lines, two launches: Launches(2, 0), not {got}"


def test_launches_of_the_real_step(lab: ModuleType) -> None:
    """What Inductor wrote for the decode step of the shipped model's shape."""
    got, want = lab.count_launches(support.inductor_output()), support.row_of(128, 1)["launches"]
    assert list(got) == want, f"inductor.txt: {got} where measure.py counted {want}"


def test_the_cost_is_a_slope(lab: ModuleType) -> None:
    """What a measurement costs besides its operators is left out."""
    for cost, besides, counts in (
        (2e-6, 5e-5, (400, 50, 200)),
        (7e-6, 0.0, (50, 200)),
        (1e-5, -1e-6, (1, 2, 2)),
    ):
        chains = [(n, besides + cost * n) for n in counts]
        got = lab.cost_per_operator(chains)
        assert math.isclose(got, cost, rel_tol=1e-9), (
            f"{besides:g} s besides and {cost:g} s for each operator: {got:g} s an operator. Seconds divided "
            f"by operators would count what the measurement itself takes"
        )


def test_the_cost_uses_every_point(lab: ModuleType) -> None:
    """Points off the line: the least squares through all, by numpy."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        counts = rng.integers(1, 500, 9).tolist()
        seconds = (rng.uniform(1, 9) * np.array(counts) + rng.normal(0, 90, 9)).tolist()
        want = np.polyfit(counts, seconds, 1)[0]
        got = lab.cost_per_operator(list(zip(counts, seconds, strict=True)))
        assert math.isclose(got, want, rel_tol=1e-6), (
            f"the line through all {len(counts)} points rises by {want:g}, not {got:g}"
        )


def test_the_cost_of_the_recorded_chains(lab: ModuleType) -> None:
    """The recorded chains, against numpy."""
    for name, chain in support.recorded("steps")["chains"].items():
        want = np.polyfit(*zip(*chain, strict=True), 1)[0]
        got = lab.cost_per_operator([(int(n), s) for n, s in chain])
        assert math.isclose(got, want, rel_tol=1e-6), f"{name}: {want:g} s an operator, not {got:g}"


@pytest.mark.parametrize("chains", [[], [(50, 1.0)], [(50, 1.0), (50, 2.0)]])
def test_a_line_needs_two_lengths(lab: ModuleType, chains: list[tuple[int, float]]) -> None:
    """One length says nothing of a slope."""
    with pytest.raises(ValueError, match="operators"):
        lab.cost_per_operator(chains)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ((-1, 1e-6, 1.0, 1.0), "launches"),
        ((1, -1e-6, 1.0, 1.0), "cost"),
        ((1, 1e-6, -1.0, 1.0), "bytes_read"),
        ((1, 1e-6, 1.0, 0.0), "bandwidth"),
        ((1, 1e-6, 1.0, -2.0), "bandwidth"),
    ],
)
def test_impossible_numbers(lab: ModuleType, given: tuple[float, ...], name: str) -> None:
    """The message names what is wrong."""
    for overlap in (True, False):
        with pytest.raises(ValueError, match=name):
            lab.predict(*given, overlap=overlap)


# -- Operators are watched. What counts is the learner's, so it is the solution here.


def counted(run: Any) -> dict[str, int]:
    import torch

    solution = load_module(LAB / "solution.py", "test_lab_05_05_solution")
    with torch.no_grad():
        return dict(solution.count_operators(run))


@pytest.mark.torch
def test_keywords_are_handed_on() -> None:
    """An operator gets the arguments that it was called with."""
    import torch

    x = torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    results: list[Any] = []
    counted(lambda: results.append(torch.sum(x, dtype=torch.float64)))
    assert results[0].dtype == torch.float64, (
        f"summed with dtype=float64 the result is {results[0].dtype}: what came in kwargs got lost"
    )


@pytest.mark.torch
def test_the_result_is_handed_on() -> None:
    """What runs inside gets its results, and what comes after is not counted."""
    import torch

    results: list[Any] = []
    first = counted(lambda: results.append(torch.ones(2) + 1))
    assert results[0].tolist() == [2.0, 2.0], f"1 + 1 is 2 inside, too: {results[0]}"
    torch.ones(2).mul(2)
    second = counted(lambda: torch.ones(2).exp())
    assert "add" in first, f"the addition is counted: {first}"
    assert set(second) & {"add", "mul"} == set(), (
        f"each call counts what runs inside of it: {second}"
    )
