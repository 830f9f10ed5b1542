"""Each kind of rotary embedding against its formula in float64, and against vLLM's own tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.model import LlamaConfig
from mini_vllm.layers.rotary_embedding import apply_rotary_emb, rope_inv_freq, rope_mscale
from tests.engine.helpers.models.model_helpers import CONFIG

DIM, THETA = 32, 10_000.0
FACTORS = {
    "short_factor": [1.0 + 0.1 * i for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "dynamic, trained on fewer": {"rope_type": "dynamic", "factor": 4.0, "max_trained_positions": 128},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn, every field": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16,
        "beta_slow": 2, "attn_factor": 1.2, "extrapolation_factor": 0.5, "truncate": False,
    },
    "yarn, not scaled": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "apply_yarn_scaling": False,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 128, **FACTORS},
    "longrope, own mscale": {
        "rope_type": "longrope", "original_max_position_embeddings": 128, "short_mscale": 1.1,
        "long_mscale": 1.3, **FACTORS,
    },
}  # fmt: skip


def config_of(kind: str, **changes: Any) -> LlamaConfig:
    raw = (
        CONFIG
        | {"head_dim": DIM, "max_position_embeddings": 512, "rope_scaling": KINDS[kind]}
        | changes
    )
    return LlamaConfig.from_dict(raw | {"rope_parameters": None, "rope_theta": THETA})


def reference(kind: str, longest: int) -> tuple[np.ndarray, float]:
    """Frequencies and the factor of cosines and sines, in float64, from the papers."""
    given = KINDS[kind]
    plain = THETA ** -(np.arange(0, DIM, 2) / DIM)
    factor, original = given.get("factor", 1.0), given.get("original_max_position_embeddings", 0)
    if given["rope_type"] == "linear":
        return plain / factor, 1.0
    if given["rope_type"] == "dynamic":
        grown = 512 / given.get("max_trained_positions", 512) * factor - (factor - 1)
        base = THETA * grown ** (DIM / (DIM - 2))
        return base ** -(np.arange(0, DIM, 2) / DIM), 1.0
    if given["rope_type"] == "llama3":
        turns = original * plain / (2 * math.pi)
        kept = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
        return plain * kept + plain / factor * (1 - kept), 1.0
    if given["rope_type"] == "longrope":
        length = "long" if longest > original else "short"
        usual = math.sqrt(1 + math.log(512 / original) / math.log(original))
        return plain / given[f"{length}_factor"], given.get(f"{length}_mscale", usual)
    if given["rope_type"] == "yarn":
        # The pair that turns so many times in the original length.
        low, high = (
            DIM * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(THETA))
            for turns in (given.get("beta_fast", 32), given.get("beta_slow", 1))
        )
        if given.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, DIM - 1)
        kept = 1 - np.clip((np.arange(DIM // 2) - low) / (high - low), 0, 1)
        kept *= given.get("extrapolation_factor", 1)
        usual = 0.1 * math.log(factor) + 1 if given.get("apply_yarn_scaling", True) else 1.0
        return plain * kept + plain / factor * (1 - kept), usual * given.get("attn_factor", 1.0)
    return plain, 1.0


@pytest.mark.parametrize("longest", [100, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_formula_in_float64(kind: str, longest: int) -> None:
    config = config_of(kind)
    inv_freq, mscale = reference(kind, longest)
    ours = rope_inv_freq(config, longest)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, inv_freq, rtol=2e-6)
    assert rope_mscale(config, longest) == pytest.approx(mscale, rel=1e-12)


def test_what_is_not_turned_stays() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 2, DIM)).astype(np.float32)
    angles = rng.standard_normal((3, 1, 6)).astype(np.float32)
    turned = apply_rotary_emb(x, np.cos(angles), np.sin(angles))
    np.testing.assert_array_equal(turned[..., 12:], x[..., 12:])
    front = apply_rotary_emb(np.ascontiguousarray(x[..., :12]), np.cos(angles), np.sin(angles))
    np.testing.assert_array_equal(turned[..., :12], front)


@pytest.mark.vllm
@pytest.mark.parametrize("partial", [1.0, 0.75])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "longrope" not in kind])
def test_against_vllms_table(kind: str, partial: float) -> None:
    """`get_rope` with the dictionary that transformers makes of the file. Which list of `longrope` counts,
    only a whole engine knows: `test_published_configs.py` asks one."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    config = config_of(kind, partial_rotary_factor=partial)
    given = KINDS[kind] | {"rope_theta": THETA, "partial_rotary_factor": partial}
    with set_current_vllm_config(VllmConfig()):
        rope: Any = get_rope(DIM, 512, rope_parameters=given)
    angles = np.arange(512, dtype=np.float32)[:, None] * rope_inv_freq(config)
    ours = np.concatenate((np.cos(angles), np.sin(angles)), axis=-1) * np.float32(
        rope_mscale(config)
    )
    table = rope.cos_sin_cache[:512].float().numpy()
    # Two float32 neighbours near an angle of 511 differ by 3e-5, and processors round differently.
    np.testing.assert_allclose(ours, table, atol=1e-4)
