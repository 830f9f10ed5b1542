"""The engine says the same whatever it goes through: chunks, cache, preemption, company, block size."""

from __future__ import annotations

import detectors
import pytest
from detectors import DETECTORS, GOLDEN, compare, drive, make_engine, random_workload, watch

from mini_vllm.engine import EngineParts


@pytest.mark.parametrize("name", DETECTORS)
def test_the_real_parts_pass(name: str) -> None:
    if name == "golden_traces" and not any(GOLDEN.glob("*.jsonl*")):
        pytest.skip("tests/golden holds no traces")
    DETECTORS[name](EngineParts())
