"""Lab 01-05: what its tests share."""

from __future__ import annotations

from typing import Any

from mini_vllm.sampling_params import SamplingParams

EOS = 2


def make_params(**knobs: Any) -> SamplingParams:
    """Sampling parameters as the engine completes them: the model's EOS id is 2."""
    params = SamplingParams(**{"temperature": 0, "max_tokens": 100} | knobs)
    params.update_from_generation_config({}, EOS)
    return params
