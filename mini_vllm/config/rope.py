"""What `config.json` says of rotary embeddings, checked: every field is obeyed or refused by name.

Mirrors what transformers and `vllm/transformers_utils/config.py:458 patch_rope_parameters` make of the two
spellings, and what `vllm/model_executor/layers/rotary_embedding/__init__.py:33 get_rope` takes of the result.
Left out: the kinds that only models of several modalities have, mrope first of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mini_vllm.config.checks import CheckpointError, is_size, read_object
from mini_vllm.utils.untrusted import shorten_repr

OPTIONAL: Mapping[str, Mapping[str, type]] = {
    "default": {},
    "linear": {},
    "dynamic": {"max_trained_positions": float},
    "yarn": {
        "extrapolation_factor": float,
        "attn_factor": float,
        "beta_fast": float,
        "beta_slow": float,
        "apply_yarn_scaling": bool,
        "truncate": bool,
    },
    "llama3": {},
    "longrope": {"short_mscale": float, "long_mscale": float},
}
"""The kinds of scaling, and for each what may be given and of which type."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
SUPPORTED_ROPE_TYPES = tuple(REQUIRED)
_LEGACY_TYPES = {"su": "longrope"}
_NOBODY_READS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
"""Keys that are read elsewhere, and one that published files hold and no engine asks for."""
_OTHER_NAMES = {
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
    "rotary_emb_fraction": "partial_rotary_factor",
}


def read_rope(raw: Mapping[str, Any], default_theta: float) -> dict[str, Any]:
    """`rope_theta`, `rope_type`, `rope_scaling` and `partial_rotary_factor` from either spelling.

    transformers 5 writes one dictionary `rope_parameters`; before, `rope_theta` stood at the top and
    `rope_scaling` held the rest, with `type` for `rope_type` in the oldest files. Where both dictionaries are
    there, `rope_scaling` counts alone, as in transformers: it is what a user adds to a file.

    Args:
        default_theta: the base where the file has none.

    Raises:
        CheckpointError: an unknown kind, a number that is missing or out of range, a key that has no effect
            with this kind, or two that contradict each other.
    """
    for key, usual in _OTHER_NAMES.items():
        if raw.get(key) is not None:
            raise CheckpointError(
                f"{key} is not supported: give {usual}, which it is another name of"
            )
    scaling, parameters = read_object(raw, "rope_scaling"), read_object(raw, "rope_parameters")
    where = "rope_scaling" if scaling else "rope_parameters"
    rope = {key: value for key, value in (scaling or parameters).items() if value is not None}
    if nested := [key for key, value in rope.items() if isinstance(value, dict)]:
        raise CheckpointError(
            f"{where} for {shorten_repr(nested[0])} alone is not supported: all layers of this model "
            "have the same"
        )
    rope_type = _read_type(rope, where)
    theta = _first(rope.get("rope_theta"), raw.get("rope_theta"), default_theta)
    if scaling and parameters.get("rope_theta") not in (None, theta):
        raise CheckpointError(
            "rope_scaling counts alone, and would lose rope_theta "
            f"{shorten_repr(parameters['rope_theta'])} of "
            "rope_parameters: write it into rope_scaling, or drop one of the two"
        )
    partial = _first(rope.get("partial_rotary_factor"), raw.get("partial_rotary_factor"), 1.0)
    if not is_size(partial) or partial > 1:
        raise CheckpointError(
            f"partial_rotary_factor must be above 0 and at most 1, got {shorten_repr(partial)}"
        )
    if rope_type in ("yarn", "llama3", "longrope"):
        # transformers' order: what stands outside, then what stands inside, then the model's own length.
        original = "original_max_position_embeddings"
        rope[original] = _first(
            raw.get(original), rope.get(original), raw.get("max_position_embeddings")
        )
    _check_keys(rope, rope_type, where)
    values = {key: rope[key] for key in (*REQUIRED[rope_type], *OPTIONAL[rope_type]) if key in rope}
    for key in ("short_factor", "long_factor"):
        if isinstance(values.get(key), list):
            values[key] = tuple(values[key])
    return {
        "rope_theta": theta,
        "rope_type": rope_type,
        "rope_scaling": MappingProxyType(values),
        "partial_rotary_factor": float(partial),
    }


def check_rope(
    rope_type: str, scaling: Mapping[str, Any], rotary_dim: int, max_position_embeddings: int
) -> None:
    """Raises CheckpointError unless the kind has the numbers that it needs, each in its range."""
    for key in REQUIRED[rope_type]:
        value = scaling.get(key)
        if key in ("short_factor", "long_factor"):
            size = rotary_dim // 2
            if not isinstance(value, tuple) or len(value) != size or not all(map(is_size, value)):
                raise CheckpointError(
                    f"rope type {rope_type!r} needs {key} in config.json, {size} numbers above 0 (half of "
                    f"what turns in a head), got {shorten_repr(value)}"
                )
        elif not is_size(value):
            raise CheckpointError(
                f"rope type {rope_type!r} needs {key} above 0 in config.json, a number that float32 holds, "
                f"got {shorten_repr(value)}"
            )
    for key, kind in OPTIONAL[rope_type].items():
        value = scaling.get(key)
        if value is not None and not (type(value) is bool if kind is bool else is_size(value)):
            wanted = "true or false" if kind is bool else "a number above 0 that float32 holds"
            raise CheckpointError(
                f"{key} of rope type {rope_type!r} must be {wanted}, got {shorten_repr(value)}"
            )
    if rope_type == "dynamic" and dynamic_growth(scaling, max_position_embeddings) <= 0:
        raise CheckpointError(
            f"max_trained_positions {scaling['max_trained_positions']} is too much for factor "
            f"{scaling['factor']} and max_position_embeddings {max_position_embeddings}: no base is left"
        )
    if rope_type == "longrope" and scaling["original_max_position_embeddings"] <= 1:
        raise CheckpointError(
            "original_max_position_embeddings must be above 1 for rope type 'longrope', got "
            f"{shorten_repr(scaling['original_max_position_embeddings'])}"
        )


def dynamic_growth(scaling: Mapping[str, Any], max_position_embeddings: int) -> float:
    """What the base of `dynamic` grows by, before it is raised to a power. It is 1, and nothing is scaled,
    unless the file gives `max_trained_positions`
    (vLLM's `DynamicNTKScalingRotaryEmbedding`,
    `vllm/model_executor/layers/rotary_embedding/dynamic_ntk_scaling_rope.py:58`)."""
    trained = float(scaling.get("max_trained_positions", max_position_embeddings))
    factor = float(scaling["factor"])
    return factor * max_position_embeddings / trained - (factor - 1)


def stretch(rope_type: str, scaling: Mapping[str, Any], longest: float) -> float:
    """The longest text, from the longest that the file names otherwise: `linear` multiplies it, and `yarn`
    counts from the length before its scaling (`vllm/config/model.py:2119 _get_and_verify_max_len`).

    Upstream `dynamic` multiplies it too, but has no angles for positions past `max_position_embeddings`
    (vLLM's pull request 55910), so that such a text goes wrong there; here it is refused.
    """
    if rope_type == "linear":
        return longest * float(scaling["factor"])
    if rope_type == "yarn":
        return float(scaling["original_max_position_embeddings"]) * float(scaling["factor"])
    return longest


def yarn_mscale(scaling: Mapping[str, Any]) -> float:
    """What `yarn` multiplies cosines and sines by (Peng et al., 2023, section 3.4)
    (`vllm/model_executor/layers/rotary_embedding/common.py:72 yarn_get_mscale`)."""
    factor, attn_factor = float(scaling["factor"]), float(scaling.get("attn_factor", 1.0))
    if factor <= 1 or not scaling.get("apply_yarn_scaling", True):
        return attn_factor
    return (0.1 * math.log(factor) + 1.0) * attn_factor


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _read_type(rope: Mapping[str, Any], where: str) -> str:
    """`rope_type`, or `type`, as it is called now; contradictions are refused as in
    `vllm/transformers_utils/config.py:407 patch_legacy_rope_type`."""
    modern, legacy = rope.get("rope_type"), rope.get("type")
    found: str = _first(modern, legacy, "default")
    for kind in (modern, legacy):
        if kind is not None and (
            not isinstance(kind, str) or _LEGACY_TYPES.get(kind, kind) not in REQUIRED
        ):
            raise CheckpointError(
                f"rope type {shorten_repr(kind)} of {where} is not supported; "
                f"supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
            )
    if (
        None not in (modern, legacy)
        and modern != legacy
        and _LEGACY_TYPES.get(str(legacy)) != modern
    ):
        raise CheckpointError(f"rope_type {modern!r} and type {legacy!r} of {where} contradict")
    return _LEGACY_TYPES.get(found, found)


def _check_keys(rope: Mapping[str, Any], rope_type: str, where: str) -> None:
    known = (*REQUIRED[rope_type], *OPTIONAL[rope_type], *_NOBODY_READS)
    for key in rope:
        if key in known:
            continue
        why = ""
        if key in ("attention_factor", "mscale", "mscale_all_dim"):
            why = " (transformers obeys it, vLLM 0.22.1 does not)"
        raise CheckpointError(
            f"{key} {shorten_repr(rope[key])} of {where} is not supported for rope type {rope_type!r}{why}; "
            f"supported: {', '.join(known[: -len(_NOBODY_READS)]) or 'none'}"
        )
