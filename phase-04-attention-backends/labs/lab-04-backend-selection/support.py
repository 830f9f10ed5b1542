"""Lab 04-04: what its tests share: the facts, the matrix, and comparisons that teach."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module

matrix = load_module(Path(__file__).resolve().parent / "matrix.py", "lab_04_04_shared")
facts = matrix.facts
Config = facts.Config
MACHINES = matrix.MACHINES


@cache
def kept() -> dict[str, Any]:
    """The committed matrix."""
    return dict(matrix.read_matrix())


@cache
def cells() -> tuple[Any, ...]:
    """Its cells: a machine's name, a `Config`, an override or None, and vLLM's answer."""
    return tuple(matrix.cells(kept()))


def answer(name: str, config: Any) -> dict[str, Any]:
    """vLLM's answer in one cell, where nobody asks for a backend."""
    [found] = [a for n, c, o, a in cells() if (n, c, o) == (name, config, None)]
    return dict(found)


LATENT = Config(576, use_mla=True, num_heads=16)
QUESTIONS = {
    "Llama on an A100": ("A100", Config(128)),
    "Llama on a B200": ("B200", Config(128)),
    "Llama on a T4": ("T4", Config(128, "float16")),
    "float32 on an H100": ("H100", Config(128, "float32")),
    "heads of 96 on an A100": ("A100", Config(96)),
    "heads of 96 on a B200": ("B200", Config(96)),
    "a sliding window on an L4": ("L4", Config(128)),
    "an fp8 cache on an A100": ("A100", Config(128, kv_cache_dtype="fp8")),
    "an fp8 cache on an H100": ("H100", Config(128, kv_cache_dtype="fp8")),
    "gpt-oss on an A100": ("A100", Config(64, has_sink=True)),
    "gpt-oss on an RTX 5090": ("RTX 5090", Config(64, has_sink=True)),
    "DeepSeek-V3 on an H100": ("H100", LATENT),
    "DeepSeek-V3 and an fp8 cache on an H100": ("H100", LATENT._replace(kv_cache_dtype="fp8")),
    "DeepSeek-V2-Lite on an L4": ("L4", LATENT),
    "DeepSeek-V3 and --block-size 16 on a B200": ("B200", LATENT._replace(block_size=16)),
    "Llama and --block-size 8 on an H100": ("H100", Config(128, block_size=8)),
}
"""The README's questions, as cells of the matrix."""


def liked_best(name: str, config: Any) -> str:
    """The candidate that vLLM tries first."""
    blackwell = name.startswith("B200")
    if config.use_mla:
        return "FLASHINFER_MLA" if blackwell else "FLASH_ATTN_MLA"
    return "FLASHINFER" if blackwell else "FLASH_ATTN"


def same_as_vllm(lab: ModuleType, wanted: Any, rule: str) -> None:
    """`lab.select` says what vLLM says, in every cell that `wanted(config, override)` takes."""
    count, wrong, first = 0, 0, ""
    for name, config, override, theirs in cells():
        if not wanted(config, override):
            continue
        count += 1
        yours = matrix.predicted(lab, MACHINES[name], config, override)
        if not matrix.same(theirs, yours):
            wrong += 1
            first = first or differs(name, config, override, theirs, yours)
    assert count, "the matrix has no such cell: do not change it"
    assert not wrong, f"{wrong} of {count} cells are not the same. The first: {first}. {rule}"


def differs(name: str, config: Any, override: str | None, theirs: Any, yours: Any) -> str:
    """The cell, and the first thing in it that is not the same."""
    asked = f", {override} asked for" if override else ""
    where = f"{name}{asked}, {matrix.label(config, ())}"
    keys = [k for k in {**theirs, **yours} if theirs.get(k) != yours.get(k)] or ["refused"]
    key = keys[0]
    if key == "refused":
        for one in {**theirs[key], **yours.get(key, {})}:
            a, b = theirs[key].get(one, []), yours.get(key, {}).get(one, [])
            if a != b:
                return f"{where}: against {one} vLLM has {a}, you {b}"
        one, other = next(
            pair for pair in zip(theirs[key], yours[key], strict=False) if pair[0] != pair[1]
        )
        return f"{where}: vLLM refuses {one} before {other}, and you the other way round"
    return f"{where}: {key} is {theirs.get(key)!r}, yours {yours.get(key)!r}"
