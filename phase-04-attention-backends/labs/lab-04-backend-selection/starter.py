"""Lab 04-04: which attention backend vLLM 0.22.1 picks, and what it says of the others. Your work: every
NotImplementedError.

Everything here is for a CUDA device, or for vLLM's CPU build where a machine has no capability. facts.py has
the types, the limits that each backend declares, and vLLM's words for a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import course
from course.learner.labs import find_root, load_module

PHASE = find_root(Path(course.__file__)) / "phase-04-attention-backends"
facts = load_module(PHASE / "labs/lab-04-backend-selection/facts.py", "lab_04_04_facts")


# -- Before you write anything.


def predictions() -> dict[str, facts.Guess]:
    """Your guesses at the sixteen questions of the README, under the names given there.

    For each, give the backend that is chosen (None where none will do), and the first reason against vLLM's
    favourite candidate, in the words of facts.py (None where that one is chosen).
    """
    raise NotImplementedError


# -- What is asked.


def inputs(layer: facts.Layer, server: facts.Server) -> facts.Config:
    """What the selector is told about a layer.

    An MLA layer caches one vector per token for all heads: the latent, and beside it the part that carries
    the position. Its `head_size` is the size of that vector. Of its other fields only `sparse` and
    `num_heads` are told. With `mla_disabled` it is a layer like any other.

    Of any other layer, all that `Config` has a field for is told, except for `num_heads` and `use_sparse`,
    which are for MLA layers and keep their defaults.

    Of the server, all but `mla_disabled` is told for every layer, except that an MLA layer leaves out
    `per_head_scales`.
    """
    common = {
        "dtype": server.dtype,
        "kv_cache_dtype": server.kv_cache_dtype,
        "block_size": server.block_size,
        "use_non_causal": server.use_non_causal,
        "use_batch_invariant": server.batch_invariant,
    }
    if layer.kv_lora_rank is not None and not server.mla_disabled:
        return facts.Config(
            head_size=layer.kv_lora_rank + layer.qk_rope_head_dim,
            use_mla=True,
            use_sparse=layer.sparse,
            num_heads=layer.num_heads,
            **common,
        )
    return facts.Config(
        head_size=layer.head_size,
        has_sink=layer.sinks,
        use_mm_prefix=layer.mm_prefix,
        use_per_head_quant_scales=server.per_head_scales,
        attn_type=layer.attn_type,
        **common,
    )


def requested(
    attention_backend: str | None, config_backend: str | None, environ: Mapping[str, str]
) -> str | None:
    """The name of the backend that the user asks for, in capitals; None where vLLM is to choose.

    Upper and lower case are the same to vLLM, and `auto` leaves the choice to vLLM, so in the config it
    counts as no backend.

    Args:
        attention_backend: the flag `--attention-backend`, or None.
        config_backend: the flag `--attention-config.backend`, or None. vLLM reads this one first.
        environ: the environment variables. See the README.

    Raises ValueError for a name that is neither in BACKENDS nor in OTHERS, with that name in its message; and
    where a flag `--attention-backend`, even `auto`, comes with a backend in the config, with both names.
    """
    in_config = _name(config_backend)
    if attention_backend is None:
        return in_config
    if in_config is not None:
        raise ValueError(f"both {attention_backend!r} and {config_backend!r}: give one of the two")
    return _name(attention_backend)


def _name(text: str | None) -> str | None:
    if text is None or text.lower() == "auto":
        return None
    if text.upper() not in (*facts.BACKENDS, *facts.OTHERS):
        known = ", ".join((*facts.BACKENDS, *facts.OTHERS))
        raise ValueError(f"{text!r} is no attention backend; there are {known}")
    return text.upper()


# -- What a GPU can do.


def flash_attn_version(machine: facts.Machine, batch_invariant: bool = False) -> int | None:
    """The version of FlashAttention that vLLM runs on this GPU, or None where none runs.

    On 9.x it is 3 and on 10.x it is 4. On any other GPU from 8.0 on it is 2. Version 4 plans its work by the
    shape of the batch, so in batch-invariant mode 2 takes its place.

    Args:
        machine: with a capability.
        batch_invariant: vLLM's batch-invariant mode is on.
    """
    raise NotImplementedError


def holds(condition: str, machine: facts.Machine, batch_invariant: bool = False) -> bool:
    """Whether one of the six conditions of facts.py holds.

    FA3 and FA3_UP ask for the version that vLLM runs. FA4_RUNS asks whether version 4 could run, which it
    does on 9.x, 10.x and 11.x, whatever vLLM runs there. TRTLLM needs 10.x, the cubins, and the
    batch-invariant mode off.
    """
    assert machine.capability is not None
    major = machine.capability[0]
    version = flash_attn_version(machine, batch_invariant)
    return {
        facts.NEVER: False,
        facts.ALWAYS: True,
        facts.FA3: version == 3,
        facts.FA3_UP: version in (3, 4),
        facts.FA4_RUNS: major in (9, 10, 11),
        facts.TRTLLM: major == 10 and machine.cubins and not batch_invariant,
    }[condition]


# -- Who is asked, and what they say.


def candidates(config: facts.Config, machine: facts.Machine) -> tuple[str, ...]:
    """The backends that vLLM tries, its favourite first.

    | | capability 10.x | any other |
    | --- | --- | --- |
    | not MLA | FLASHINFER, FLASH_ATTN | FLASH_ATTN, FLASHINFER |
    | | then for both: TRITON_ATTN, FLEX_ATTENTION, TURBOQUANT | |
    | MLA | FLASHINFER_MLA, TOKENSPEED_MLA, CUTLASS_MLA | |
    | | FLASH_ATTN_MLA, FLASHMLA | FLASH_ATTN_MLA, FLASHMLA, FLASHINFER_MLA |
    | | TRITON_MLA, and two sparse ones | TRITON_MLA, FLASHMLA_SPARSE |

    The two sparse ones are FLASHMLA_SPARSE and then FLASHINFER_MLA_SPARSE. They change places where the cache
    is one of QUANTIZED, or where it is known that there are at most 16 heads.

    Args:
        config: of which only `use_mla`, `kv_cache_dtype` and `num_heads` are looked at.
        machine: with a capability.
    """
    assert machine.capability is not None
    blackwell = machine.capability[0] == 10
    if not config.use_mla:
        first = ("FLASHINFER", "FLASH_ATTN") if blackwell else ("FLASH_ATTN", "FLASHINFER")
        return (*first, "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    if not blackwell:
        return ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA", "FLASHMLA_SPARSE")
    sparse = ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
    few_heads = config.num_heads is not None and config.num_heads <= 16
    if config.kv_cache_dtype not in facts.QUANTIZED and not few_heads:
        sparse = sparse[::-1]
    return (
        "FLASHINFER_MLA",
        "TOKENSPEED_MLA",
        "CUTLASS_MLA",
        "FLASH_ATTN_MLA",
        "FLASHMLA",
        "TRITON_MLA",
        *sparse,
    )


def refusals(backend: facts.Backend, config: facts.Config, machine: facts.Machine) -> list[str]:
    """Every reason against a backend, in the order of facts.py. Empty where the backend will do.

    All reasons are collected, not only the first. A `block_size` of None is no wish. The last reason, a
    combination of inputs, is given as `_combination`:
    - FLASH_ATTN: sinks below capability 9.0;
    - FLASH_ATTN_MLA: a GPU other than 9.x;
    - FLASHMLA: a GPU other than 9.x, or for a sparse layer other than 9.x and 10.x, which has its own words;
    - TOKENSPEED_MLA: the package is not installed.

    A backend whose module cannot be imported has NOT_THERE as its only reason.

    Args:
        backend: from BACKENDS.
        config: what is asked.
        machine: with a capability.
    """
    raise NotImplementedError


def _combination(name: str, config: facts.Config, machine: facts.Machine) -> str | None:
    """The reason that does not depend on one input alone, if there is one."""
    assert machine.capability is not None
    major = machine.capability[0]
    if name == "FLASH_ATTN" and config.has_sink and major < 9:
        return facts.SINKS_BELOW_9
    if name == "FLASH_ATTN_MLA" and major != 9:
        return facts.NO_FA3
    if name == "FLASHMLA" and config.use_sparse:
        return None if major in (9, 10) else facts.HOPPER_OR_BLACKWELL
    if name == "FLASHMLA" and major != 9:
        return facts.HOPPER
    if name == "TOKENSPEED_MLA" and not machine.tokenspeed:
        return facts.NO_TOKENSPEED
    return None


# -- The choice.


def select(
    config: facts.Config, machine: facts.Machine, override: str | None = None
) -> facts.Choice:
    """What vLLM chooses: the first candidate that has no reason against it.

    `precluded` are the candidates before it whose only reason is the block size.

    An override is checked against its own limits, and nothing else is tried: the `Choice` has its name, and
    it alone is `valid`.

    Without a capability the machine is a CPU. There the backend is CPU_ATTN, which alone is `valid`, whatever
    is asked for.

    Args:
        config: what is asked.
        machine: where.
        override: a name of BACKENDS, or None.

    Raises:
        NoBackendError: no candidate will do. On a CPU this is so for MLA, and CPU_ATTN's reason is MLA.
        InvalidOverrideError: there are reasons against the override.
    """
    raise NotImplementedError


def cache_block_size(backend: facts.Backend, block_size: int | None) -> int:
    """The tokens of a block of the KV cache, once the backend is chosen.

    The size that the user has asked for stands. Otherwise it is 16 where the backend takes that, and the
    smallest of its `block_sizes` where it does not.
    """
    if block_size is not None:
        return block_size
    fits = any(16 % size == 0 for size in backend.block_sizes)
    return 16 if fits else min(backend.block_sizes)
