"""The number of BLAS threads is set inside the block and restored after it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.blas import blas_threads, get_blas_threads
from tests.engine.helpers.engine.engine_helpers import make_engine, run


def test_threads_are_set_and_restored() -> None:
    before = get_blas_threads()
    if before is None:
        pytest.skip("numpy uses a BLAS other than OpenBLAS")
    with blas_threads(1):
        assert get_blas_threads() == 1
        with blas_threads(2):
            assert get_blas_threads() == 2
        assert get_blas_threads() == 1
    assert get_blas_threads() == before

    def fail() -> None:
        with blas_threads(1):
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert get_blas_threads() == before


@pytest.mark.parametrize(("variable", "expected"), [(None, 1), ("OMP_NUM_THREADS", 2)])
def test_a_small_model_computes_on_one_thread_unless_somebody_chose(
    variable: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if get_blas_threads() is None:
        pytest.skip("numpy uses a BLAS other than OpenBLAS")
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "2")
    engine = make_engine(num_gpu_blocks=8)
    forward, seen = engine.model.forward, set()

    def counted(*args: Any) -> Any:
        seen.add(get_blas_threads())
        return forward(*args)

    monkeypatch.setattr(engine.model, "forward", counted)
    with blas_threads(2):
        run(engine, [[5, 6, 7]], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        assert get_blas_threads() == 2
    assert seen == {expected}


@pytest.mark.parametrize(
    ("core_type", "expected"), [("Nehalem", False), ("Haswell", False), ("SkylakeX", True)]
)
def test_openblas_has_small_matrix_kernels_with_avx512_only(core_type: str, expected: bool) -> None:
    code = (
        "from threadpoolctl import threadpool_info; import numpy; "
        "from numpy._core._multiarray_umath import __cpu_features__ as has; "
        "from mini_vllm.utils.blas import faster_core_type, has_small_matrix_kernels; "
        "print([b.get('architecture') for b in threadpool_info()], has['AVX512VL'], faster_core_type(),"
        " has_small_matrix_kernels())"
    )
    env = {**os.environ, "OPENBLAS_CORETYPE": core_type}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if child.returncode < 0 or (child.returncode == 0 and f"'{core_type}'" not in child.stdout):
        pytest.skip(f"numpy's BLAS has no {core_type} kernels, or this processor cannot run them")
    assert child.returncode == 0, child.stderr
    *_, wide, faster, small = child.stdout.split()
    assert small == str(expected)
    # With AVX-512 about, AVX2 kernels are not the fastest; older ones were somebody's own choice.
    assert faster == str("SkylakeX" if core_type == "Haswell" and wide == "True" else None)


def test_refused_counts() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"), blas_threads(0):
        pass
