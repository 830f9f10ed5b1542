"""The number of BLAS threads is set inside the block and restored after it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import make_engine, run

from mini_vllm.blas import blas_threads, get_blas_threads
from mini_vllm.sampling_params import SamplingParams


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


def test_refused_counts() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"), blas_threads(0):
        pass
