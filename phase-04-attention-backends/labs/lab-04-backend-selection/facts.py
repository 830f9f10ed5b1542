"""Given: the questions, the limits that each backend declares, and vLLM's words for a refusal.

All of it is read off vLLM 0.22.1, and tests/authors/test_lab_04_04_vllm.py asks vLLM again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

# -- What is asked.

DENSE_HALF = ("float16", "bfloat16")
DECODER, ENCODER, ENCODER_ONLY, CROSS = "decoder", "encoder", "encoder_only", "encoder_decoder"


class Layer(NamedTuple):
    """One attention layer of a model, as the model's file builds it.

    Attributes:
        head_size: numbers in a head. Of an MLA layer it is that of the heads before they are compressed.
        num_heads: query heads on this GPU.
        num_kv_heads: KV heads on this GPU.
        sliding_window: tokens that it looks back on, or None for all.
        logits_soft_cap: of the scores, or None.
        sinks: it has a learned sink for each head, as gpt-oss has.
        mm_prefix: the tokens of an image see one another in both directions.
        attn_type: one of the four above.
        kv_lora_rank: of an MLA layer: numbers in the latent that it caches; None for any other layer.
        qk_rope_head_dim: of an MLA layer: numbers beside the latent that carry the position.
        sparse: an MLA layer with an indexer, as DeepSeek-V3.2 has.
    """

    head_size: int
    num_heads: int = 32
    num_kv_heads: int = 8
    sliding_window: int | None = None
    logits_soft_cap: float | None = None
    sinks: bool = False
    mm_prefix: bool = False
    attn_type: str = DECODER
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0
    sparse: bool = False


class Server(NamedTuple):
    """How vLLM is started.

    Attributes:
        dtype: of the activations.
        kv_cache_dtype: the flag `--kv-cache-dtype`.
        block_size: the flag `--block-size`, or None where nobody gave it. vLLM then has 16 in mind.
        per_head_scales: the checkpoint's KV cache is quantized with a scale for each head.
        use_non_causal: vLLM's attention_config has it.
        batch_invariant: `VLLM_BATCH_INVARIANT=1`.
        mla_disabled: `VLLM_MLA_DISABLE=1`, so MLA layers run as ordinary ones.
    """

    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    per_head_scales: bool = False
    use_non_causal: bool = False
    batch_invariant: bool = False
    mla_disabled: bool = False


class Config(NamedTuple):
    """All that the selector is told: the fields of vLLM's `AttentionSelectorConfig`, and `num_heads`.

    Attributes:
        block_size: None where nobody has asked for one.
        num_heads: None but for MLA layers.
    """

    head_size: int
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = DECODER
    use_non_causal: bool = False
    use_batch_invariant: bool = False
    num_heads: int | None = None


class Machine(NamedTuple):
    """Where it runs.

    Attributes:
        capability: of the GPU, such as (8, 9); None for vLLM's CPU build.
        flashinfer: the package is installed.
        cubins: NVIDIA's server, from which FlashInfer fetches kernels, answers (or they are installed).
        tokenspeed: the package tokenspeed_mla is installed.
    """

    capability: tuple[int, int] | None
    flashinfer: bool = True
    cubins: bool = True
    tokenspeed: bool = False


# -- What each backend says of itself. The words are conditions: `holds` says when they hold.

NEVER, ALWAYS = "never", "always"
FA3 = "FlashAttention is in version 3"
FA3_UP = "FlashAttention is in version 3 or 4"
FA4_RUNS = "FlashAttention 4 runs on this GPU"
TRTLLM = "FlashInfer's TRT-LLM kernels can be had"


class Where(NamedTuple):
    """Values that a backend takes only under a condition."""

    values: Container[object] = ()
    condition: str = NEVER


class Backend(NamedTuple):
    """The limits that a backend's class declares.

    Attributes:
        name: its name in vLLM.
        mla: it is for MLA layers, and for no others.
        sparse: it is for sparse layers, and for no others.
        lowest, highest: the GPUs it is made for, both included.
        head_sizes: that it takes, `more_head_sizes` under a condition; None for any.
        dtypes: of the activations.
        kv_dtypes: of the cache, `more_kv_dtypes` under a condition.
        block_sizes: one of these must divide the block size.
        attn_types: that it takes.
        sinks, per_head_scales: conditions.
        mm_prefix, non_causal, batch_invariant: whether it can.
        needs_flashinfer: without the package its module cannot be imported.
    """

    name: str
    mla: bool = False
    sparse: bool = False
    lowest: tuple[int, int] = (0, 0)
    highest: tuple[int, int] = (99, 9)
    head_sizes: Container[object] | None = None
    more_head_sizes: Where = Where()
    dtypes: tuple[str, ...] = DENSE_HALF
    kv_dtypes: tuple[str, ...] = ("auto", "float16", "bfloat16")
    more_kv_dtypes: Where = Where()
    block_sizes: tuple[int, ...] = (16,)
    attn_types: tuple[str, ...] = (DECODER,)
    sinks: str = NEVER
    per_head_scales: str = NEVER
    mm_prefix: bool = False
    non_causal: bool = False
    batch_invariant: bool = False
    needs_flashinfer: bool = False


QUANTIZED = (
    "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "fp8_per_token_head",
    "int8_per_token_head", "nvfp4",
)  # fmt: skip
"""What vLLM counts as a quantized cache when it puts the candidates in order."""

_PLAIN = ("auto", "float16", "bfloat16")
_FP8 = ("fp8", "fp8_e4m3")
_ALL_TYPES = (DECODER, ENCODER, ENCODER_ONLY, CROSS)
_LATENT = (320, 576)
_ANY_DTYPE = (*DENSE_HALF, "float32")

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "FLASH_ATTN", lowest=(8, 0), head_sizes=range(8, 257, 8),
            more_head_sizes=Where(range(264, 513, 8), FA4_RUNS), more_kv_dtypes=Where(_FP8, FA3),
            attn_types=_ALL_TYPES, sinks=FA3_UP, per_head_scales=FA3_UP, non_causal=True,
            batch_invariant=True,
        ),
        Backend(
            "FLASHINFER", lowest=(7, 5), highest=(12, 1), head_sizes=(64, 128, 256, 512),
            kv_dtypes=(*_PLAIN, *_FP8, "fp8_e5m2", "nvfp4"), block_sizes=(16, 32, 64), sinks=TRTLLM,
            needs_flashinfer=True,
        ),
        Backend(
            "TRITON_ATTN", head_sizes=range(32, 1 << 20), dtypes=_ANY_DTYPE,
            kv_dtypes=(*_PLAIN, *_FP8, "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"),
            attn_types=_ALL_TYPES, sinks=ALWAYS, mm_prefix=True, batch_invariant=True,
        ),
        Backend(
            "FLEX_ATTENTION", dtypes=_ANY_DTYPE, attn_types=(DECODER, ENCODER_ONLY), mm_prefix=True,
            non_causal=True, batch_invariant=True,
        ),
        Backend(
            "TURBOQUANT", block_sizes=(16, 32, 64, 128),
            kv_dtypes=(
                "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
            ),
        ),
        Backend(
            "FLASH_ATTN_MLA", mla=True, lowest=(9, 0), highest=(9, 9), head_sizes=_LATENT,
            batch_invariant=True,
        ),
        Backend(
            "FLASHMLA", mla=True, lowest=(9, 0), highest=(10, 9), head_sizes=_LATENT,
            kv_dtypes=(*_PLAIN, *_FP8), block_sizes=(64,),
        ),
        Backend(
            "FLASHINFER_MLA", mla=True, lowest=(10, 0), highest=(10, 9), head_sizes=_LATENT,
            kv_dtypes=(*_PLAIN, *_FP8), block_sizes=(32, 64), needs_flashinfer=True,
        ),
        Backend(
            "TOKENSPEED_MLA", mla=True, lowest=(10, 0), highest=(10, 9), head_sizes=_LATENT,
            kv_dtypes=_FP8, block_sizes=(32, 64),
        ),
        Backend(
            "CUTLASS_MLA", mla=True, lowest=(10, 0), highest=(10, 9), head_sizes=_LATENT,
            kv_dtypes=(*_PLAIN, *_FP8), block_sizes=(128,),
        ),
        Backend("TRITON_MLA", mla=True, kv_dtypes=(*_PLAIN, *_FP8), batch_invariant=True),
        Backend(
            "FLASHMLA_SPARSE", mla=True, sparse=True, lowest=(9, 0), highest=(10, 9),
            head_sizes=(576,), dtypes=("bfloat16",), block_sizes=(64,),
            kv_dtypes=("auto", "bfloat16", "fp8_ds_mla", "fp8"),
        ),
        Backend(
            "FLASHINFER_MLA_SPARSE", mla=True, sparse=True, lowest=(10, 0), highest=(10, 9),
            head_sizes=(576,), kv_dtypes=(*_PLAIN, *_FP8), block_sizes=(32, 64),
            needs_flashinfer=True,
        ),
    )
}  # fmt: skip
"""The thirteen that vLLM 0.22.1 considers on a CUDA device, by name."""

OTHERS = (
    "FLASH_ATTN_DIFFKV", "ROCM_ATTN", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "ROCM_AITER_FA",
    "ROCM_AITER_MLA_SPARSE", "XPU_MLA_SPARSE", "TORCH_SDPA", "NO_ATTENTION", "ROCM_AITER_UNIFIED_ATTN",
    "CPU_ATTN", "CUSTOM",
)  # fmt: skip
"""Names that vLLM knows besides: for other devices, for images, for code of your own."""

# -- The reasons, in the order in which vLLM looks for them.

HEAD_SIZE = "head_size not supported"
DTYPE = "dtype not supported"
KV_DTYPE = "kv_cache_dtype not supported"
BLOCK_SIZE = "block_size not supported"
MM_PREFIX = "partial multimodal token full attention not supported"
MLA = "MLA not supported"
NOT_MLA = "non-MLA not supported"
SINKS = "attention sinks not supported"
SPARSE = "sparse not supported"
NOT_SPARSE = "non-sparse not supported"
PER_HEAD_SCALES = "per-head quant scales not supported"
CAPABILITY = "compute capability not supported"
ATTN_TYPE = {t: f"attention type {t} not supported" for t in _ALL_TYPES}
NON_CAUSAL = "non-causal attention not supported"
BATCH_INVARIANT = "batch invariance not supported"
# At most one of these, at the end: a combination that is not supported.
SINKS_BELOW_9 = "sink not supported on compute capability < 9.0"  # FLASH_ATTN
NO_FA3 = "FlashAttention MLA not supported on this device"  # FLASH_ATTN_MLA, other than 9.x
HOPPER = "FlashMLA Dense is only supported on Hopper devices."  # FLASHMLA, other than 9.x
HOPPER_OR_BLACKWELL = "FlashMLA Sparse is only supported on Hopper and Blackwell devices."
"""FLASHMLA, if the layer is sparse, other than 9.x and 10.x; it takes the place of HOPPER."""
NO_TOKENSPEED = (
    "tokenspeed_mla package is not installed. Install it with: `uv pip install tokenspeed-mla`"
)
# And the only one, where a module cannot be imported.
NOT_THERE = "ImportError"


# -- The answers.


class Choice(NamedTuple):
    """What is chosen, and what is said about it.

    Attributes:
        backend: its name.
        valid: all candidates that would do, in the order of preference.
        refused: the other candidates with their reasons, in the order of preference.
        precluded: who was preferred and is out for the user's block size alone: vLLM's warning names them.
    """

    backend: str
    valid: tuple[str, ...] = ()
    refused: Mapping[str, list[str]] = {}
    precluded: tuple[str, ...] = ()


class NoBackendError(ValueError):
    """No candidate will do. `refused` has their reasons."""

    def __init__(self, refused: Mapping[str, list[str]]) -> None:
        super().__init__(f"no valid attention backend: {dict(refused)}")
        self.refused = dict(refused)


class InvalidOverrideError(ValueError):
    """The backend that the user asked for will not do. `reasons` says why."""

    def __init__(self, backend: str, reasons: list[str]) -> None:
        super().__init__(f"{backend} is not valid for this configuration: {reasons}")
        self.reasons = list(reasons)


class Guess(NamedTuple):
    """A prediction.

    Attributes:
        backend: the one that is chosen, or None where none will do.
        first: the first reason of the candidate that vLLM would like best; None where it is chosen.
    """

    backend: str | None
    first: str | None = None
