"""Lab 04-04: which attention backend vLLM 0.22.1 picks, and what it says of the others.

Everything here is for a CUDA device, or for vLLM's CPU build where a machine has no capability.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

import course
from course.learner.labs import find_root, load_module

PHASE = find_root(Path(course.__file__)) / "phase-04-attention-backends"
facts = load_module(PHASE / "labs/lab-04-backend-selection/facts.py", "lab_04_04_facts")


def predictions() -> dict[str, facts.Guess]:
    """What the matrix says."""
    return {
        "Llama on an A100": facts.Guess("FLASH_ATTN"),
        "Llama on a B200": facts.Guess("FLASHINFER"),
        "Llama on a T4": facts.Guess("FLASHINFER", facts.CAPABILITY),
        "float32 on an H100": facts.Guess("TRITON_ATTN", facts.DTYPE),
        "heads of 96 on an A100": facts.Guess("FLASH_ATTN"),
        "heads of 96 on a B200": facts.Guess("FLASH_ATTN", facts.HEAD_SIZE),
        "a sliding window on an L4": facts.Guess("FLASH_ATTN"),
        "an fp8 cache on an A100": facts.Guess("FLASHINFER", facts.KV_DTYPE),
        "an fp8 cache on an H100": facts.Guess("FLASH_ATTN"),
        "gpt-oss on an A100": facts.Guess("TRITON_ATTN", facts.SINKS),
        "gpt-oss on an RTX 5090": facts.Guess("TRITON_ATTN", facts.SINKS),
        "DeepSeek-V3 on an H100": facts.Guess("FLASH_ATTN_MLA"),
        "DeepSeek-V3 and an fp8 cache on an H100": facts.Guess("FLASHMLA", facts.KV_DTYPE),
        "DeepSeek-V2-Lite on an L4": facts.Guess("TRITON_MLA", facts.CAPABILITY),
        "DeepSeek-V3 and --block-size 16 on a B200": facts.Guess("TRITON_MLA", facts.BLOCK_SIZE),
        "Llama and --block-size 8 on an H100": facts.Guess(None, facts.BLOCK_SIZE),
    }


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


def flash_attn_version(machine: facts.Machine, batch_invariant: bool = False) -> int | None:
    """3 on Hopper, 4 on Blackwell's servers, 2 on all others from Ampere on."""
    assert machine.capability is not None
    major, _minor = machine.capability
    if major < 8:
        return None
    version = {9: 3, 10: 4}.get(major, 2)
    return 2 if version == 4 and batch_invariant else version


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
    """Every reason, in vLLM's order."""
    assert machine.capability is not None
    if backend.needs_flashinfer and not machine.flashinfer:
        return [facts.NOT_THERE]

    def can(condition: str) -> bool:
        return holds(condition, machine, config.use_batch_invariant)

    def takes(value: object, values: Container[object] | None, more: facts.Where) -> bool:
        return values is None or value in values or (value in more.values and can(more.condition))

    size, heads, kv = config.block_size, config.head_size, config.kv_cache_dtype
    checks = (
        (facts.HEAD_SIZE, takes(heads, backend.head_sizes, backend.more_head_sizes)),
        (facts.DTYPE, config.dtype in backend.dtypes),
        (facts.KV_DTYPE, takes(kv, backend.kv_dtypes, backend.more_kv_dtypes)),
        (facts.BLOCK_SIZE, size is None or any(size % n == 0 for n in backend.block_sizes)),
        (facts.MM_PREFIX, backend.mm_prefix or not config.use_mm_prefix),
        (facts.MLA, backend.mla or not config.use_mla),
        (facts.NOT_MLA, config.use_mla or not backend.mla),
        (facts.SINKS, not config.has_sink or can(backend.sinks)),
        (facts.SPARSE, backend.sparse or not config.use_sparse),
        (facts.NOT_SPARSE, config.use_sparse or not backend.sparse),
        (
            facts.PER_HEAD_SCALES,
            not config.use_per_head_quant_scales or can(backend.per_head_scales),
        ),
        (facts.CAPABILITY, backend.lowest <= machine.capability <= backend.highest),
        (facts.ATTN_TYPE[config.attn_type], config.attn_type in backend.attn_types),
        (facts.NON_CAUSAL, backend.non_causal or not config.use_non_causal),
        (facts.BATCH_INVARIANT, backend.batch_invariant or not config.use_batch_invariant),
    )
    reasons = [reason for reason, fine in checks if not fine]
    last = _combination(backend.name, config, machine)
    return reasons if last is None else [*reasons, last]


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


def select(
    config: facts.Config, machine: facts.Machine, override: str | None = None
) -> facts.Choice:
    """An override is held against its limits, and nothing else is tried."""
    if machine.capability is None:
        if config.use_mla:
            raise facts.NoBackendError({"CPU_ATTN": [facts.MLA]})
        return facts.Choice("CPU_ATTN", ("CPU_ATTN",))
    if override is not None:
        reasons = refusals(facts.BACKENDS[override], config, machine)
        if reasons:
            raise facts.InvalidOverrideError(override, reasons)
        return facts.Choice(override, (override,))
    order = candidates(config, machine)
    reasons_of = {name: refusals(facts.BACKENDS[name], config, machine) for name in order}
    valid = tuple(name for name in order if not reasons_of[name])
    refused = {name: reasons for name, reasons in reasons_of.items() if reasons}
    if not valid:
        raise facts.NoBackendError(refused)
    better = order[: order.index(valid[0])]
    precluded = tuple(name for name in better if refused[name] == [facts.BLOCK_SIZE])
    return facts.Choice(valid[0], valid, refused, precluded)


def cache_block_size(backend: facts.Backend, block_size: int | None) -> int:
    """The tokens of a block of the KV cache, once the backend is chosen.

    The size that the user has asked for stands. Otherwise it is 16 where the backend takes that, and the
    smallest of its `block_sizes` where it does not.
    """
    if block_size is not None:
        return block_size
    fits = any(16 % size == 0 for size in backend.block_sizes)
    return 16 if fits else min(backend.block_sizes)
