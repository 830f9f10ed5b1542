"""The number of BLAS threads is set inside the block and restored after it."""

from __future__ import annotations

import pytest

from mini_vllm.blas import blas_threads, get_blas_threads


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


def test_refused_counts() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"), blas_threads(0):
        pass
