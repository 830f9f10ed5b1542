"""Which CUDA graphs there are: the five modes, the sizes to capture, what attention allows.

Mirrors `vllm/config/compilation.py:53 CUDAGraphMode`, `vllm/forward_context.py:30 BatchDescriptor`,
`vllm/v1/attention/backend.py:499 AttentionCGSupport`, and two methods of the config:
`vllm/config/vllm.py:1597 VllmConfig._set_cudagraph_sizes` and
`vllm/config/compilation.py:1318 CompilationConfig.resolve_cudagraph_mode_and_sizes`. Upstream these write to
a config object; here they are functions of plain numbers, called in the same order: the sizes when the config
is made, the mode once the attention backend is known, then the sizes again if there are drafts.

Left out: LoRA (a graph for each count of adapters), sequence parallelism (sizes in multiples of the GPUs),
`compile_sizes` and Inductor's own partition (the compiler's business), Mamba's cache blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mini_vllm.utils.untrusted import shorten_repr

logger = logging.getLogger(__name__)

PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")
"""`vllm/config/vllm.py:87 PerformanceMode`."""


class CUDAGraphMode(Enum):
    """What is asked for, and, for the first three, how one step runs
    (`vllm/config/compilation.py:53 CUDAGraphMode`).

    The last two are pairs: how a uniform decode batch runs, then how any other (a mixed one) runs.
    """

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)

    def separate_routine(self) -> bool:
        """True if decode batches and mixed ones are told apart."""
        return isinstance(self.value, tuple)

    def decode_mode(self) -> CUDAGraphMode:
        """How a uniform decode batch is to run
        (`vllm/config/compilation.py:65 CUDAGraphMode.decode_mode`)."""
        return CUDAGraphMode(self.value[0]) if isinstance(self.value, tuple) else self

    def mixed_mode(self) -> CUDAGraphMode:
        """How any other batch is to run (`vllm/config/compilation.py:68 CUDAGraphMode.mixed_mode`)."""
        return CUDAGraphMode(self.value[1]) if isinstance(self.value, tuple) else self

    def has_mode(self, mode: CUDAGraphMode) -> bool:
        """True if either kind of batch runs as `mode`. Raises ValueError if `mode` is a pair."""
        if mode.separate_routine():
            raise ValueError(f"has_mode asks about NONE, PIECEWISE or FULL, got {mode.name}")
        return mode in (self.decode_mode(), self.mixed_mode())

    def requires_piecewise_compilation(self) -> bool:
        """True if the model must have been split at attention."""
        return self.has_mode(CUDAGraphMode.PIECEWISE)

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        """The larger of the two: FULL over PIECEWISE over NONE."""
        return max(self.decode_mode(), self.mixed_mode(), key=lambda mode: mode.value)

    def has_full_cudagraphs(self) -> bool:
        return self.max_cudagraph_mode() == CUDAGraphMode.FULL

    def has_piecewise_cudagraphs(self) -> bool:
        return self.requires_piecewise_compilation()

    @classmethod
    def valid_runtime_modes(cls) -> frozenset[CUDAGraphMode]:
        return frozenset({cls.NONE, cls.PIECEWISE, cls.FULL})

    def is_valid_runtime_mode(self) -> bool:
        return self in CUDAGraphMode.valid_runtime_modes()

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        return self is not CUDAGraphMode.NONE


@dataclass(frozen=True)
class BatchDescriptor:
    """The shape that a graph was captured for, and under which it is found again
    (`vllm/forward_context.py:30 BatchDescriptor`).

    Attributes:
        num_tokens: rows of the batch, padding included.
        num_reqs: requests, padding included. None for pieces, which hold no attention and so do not
            see requests.
        uniform: every request has the same count of tokens, the query length of a decode.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False


class AttentionCGSupport(Enum):
    """In which batches a backend's attention may be inside a graph. A higher level holds the lower ones.
    Source: `vllm/v1/attention/backend.py:499 AttentionCGSupport`."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    """One token a request."""
    UNIFORM_BATCH = 2
    """One count of tokens for all requests, so decodes with drafts as well."""
    ALWAYS = 3
    """Any batch, a prompt among decodes too."""


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises ValueError, naming `name` and `value`, for what is no integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}, got {shorten_repr(value)}"
        )


def cudagraph_capture_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    max_cudagraph_capture_size: int | None = None,
    cudagraph_capture_sizes: Sequence[int] | None = None,
    uniform_decode_query_len: int = 1,
    performance_mode: str = "balanced",
) -> list[int]:
    """The ladder: the batch sizes, in tokens, to capture
    (`vllm/config/vllm.py:1597 VllmConfig._set_cudagraph_sizes`).

    Args:
        max_num_seqs: most requests in a step.
        max_num_batched_tokens: most tokens in a step.
        max_cudagraph_capture_size: the highest rung that is wanted, if one is named. Rungs stand where they
            stand, so the ladder may end below it.
        cudagraph_capture_sizes: the rungs themselves, if they are named.
        uniform_decode_query_len: tokens of a decoding request in a step, one and its drafts.
        performance_mode: `interactivity` gives every size up to 32 a rung of its own.

    Returns: the sizes, rising, each once. The last one is the maximum that holds from now on
        (`max_cudagraph_capture_size` upstream); no sizes means no graphs.

    Raises ValueError naming the value and the rule; also if sizes and maximum are both named and disagree.
        A size below 1 is refused as well; upstream does not look.
    """
    check_count("max_num_seqs", max_num_seqs)
    check_count("max_num_batched_tokens", max_num_batched_tokens)
    check_count("uniform_decode_query_len", uniform_decode_query_len)
    if performance_mode not in PERFORMANCE_MODES:
        raise ValueError(
            f"performance_mode must be one of {', '.join(PERFORMANCE_MODES)}, got "
            f"{shorten_repr(performance_mode)}"
        )
    largest = max_cudagraph_capture_size
    if largest is None:
        largest = min(max_num_seqs * uniform_decode_query_len * 2, 512)
    check_count("max_cudagraph_capture_size", largest)
    largest = min(largest, max_num_batched_tokens)

    if cudagraph_capture_sizes is not None:
        if len(cudagraph_capture_sizes) == 0:
            raise ValueError("cudagraph_capture_sizes must hold at least one size, got []")
        for size in cudagraph_capture_sizes:
            check_count("a size in cudagraph_capture_sizes", size)
        sizes = sorted({size for size in cudagraph_capture_sizes if size <= max_num_batched_tokens})
    else:
        small = range(1, 33) if performance_mode == "interactivity" else (1, 2, 4)
        rungs = {*small, *range(8, 256, 8), *range(256, largest + 1, 16)}
        if largest == max_num_batched_tokens:
            rungs.add(largest)  # the full step has a rung, wherever it falls
        sizes = sorted(size for size in rungs if size <= largest)

    max_captured_tokens = sizes[-1] if sizes else 0
    if max_cudagraph_capture_size is not None and max_cudagraph_capture_size != max_captured_tokens:
        if cudagraph_capture_sizes is not None:
            raise ValueError(
                f"max_cudagraph_capture_size ({max_cudagraph_capture_size}) must be the largest of "
                f"cudagraph_capture_sizes that max_num_batched_tokens ({max_num_batched_tokens}) "
                f"allows, which is {max_captured_tokens}"
            )
        logger.warning(
            "max_cudagraph_capture_size %d is no rung: cut to %d",
            max_cudagraph_capture_size,
            max_captured_tokens,
        )
    return sizes


def adjust_cudagraph_sizes_for_spec_decode(
    sizes: Sequence[int], uniform_decode_query_len: int
) -> list[int]:
    """The rungs rounded up to whole requests, for FULL graphs of decodes with drafts
    (`vllm/config/compilation.py:1464 CompilationConfig.adjust_cudagraph_sizes_for_spec_decode`).

    Args:
        sizes: a rising ladder.
        uniform_decode_query_len: tokens of a decoding request in a step; 1 changes nothing.

    Returns: the new ladder; no rung is above the old top.

    Raises ValueError if no rung is left: one request is longer than the top.
    """
    check_count("uniform_decode_query_len", uniform_decode_query_len)
    if not sizes or uniform_decode_query_len == 1:
        return list(sizes)
    max_captured_tokens = sizes[-1]
    if uniform_decode_query_len > max_captured_tokens:
        raise ValueError(
            f"no capture size of {shorten_repr(list(sizes))} holds one decoding request of "
            f"{uniform_decode_query_len} tokens ({uniform_decode_query_len - 1} drafts): raise "
            "max_cudagraph_capture_size or lower the number of drafts"
        )
    rounded = {-(-size // uniform_decode_query_len) * uniform_decode_query_len for size in sizes}
    kept = sorted(size for size in rounded if size <= max_captured_tokens)
    return kept or [uniform_decode_query_len]


def resolve_cudagraph_mode(
    cudagraph_mode: CUDAGraphMode,
    min_cg_support: AttentionCGSupport,
    *,
    min_cg_attn_backend: str | None = None,
    uniform_decode_query_len: int = 1,
    is_attention_compiled_piecewise: bool = True,
) -> CUDAGraphMode:
    """The mode that the attention backend can bear, lowered with a warning where it must be
    (`vllm/config/compilation.py:1318 CompilationConfig.resolve_cudagraph_mode_and_sizes`).

    Args:
        cudagraph_mode: what was asked for.
        min_cg_support: the lowest support among the model's attention backends.
        min_cg_attn_backend: the name of that backend, for messages.
        uniform_decode_query_len: tokens of a decoding request in a step.
        is_attention_compiled_piecewise: the model is split at attention, so that pieces can be captured
            (at the pin: vLLM's own compilation is on, and `splitting_ops` was not emptied).

    Raises ValueError for FULL where attention is never inside a graph: too much was asked for by name.
    """
    check_count("uniform_decode_query_len", uniform_decode_query_len)
    full = CUDAGraphMode.FULL
    never = min_cg_support is AttentionCGSupport.NEVER
    backend = f"the attention backend {min_cg_attn_backend} (support: {min_cg_support.name})"
    mode = cudagraph_mode

    # A graph with a mixed batch's attention in it.
    if mode.mixed_mode() is full and min_cg_support is not AttentionCGSupport.ALWAYS:
        if never:
            raise ValueError(f"cudagraph_mode {mode} is not supported by {backend}: use PIECEWISE")
        if is_attention_compiled_piecewise:
            mode = CUDAGraphMode.FULL_AND_PIECEWISE
        else:
            mode = CUDAGraphMode.FULL_DECODE_ONLY
    # A graph with a decode batch's attention in it, with and without drafts.
    needed = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    if uniform_decode_query_len > 1:
        needed = AttentionCGSupport.UNIFORM_BATCH
    if mode.decode_mode() is full and min_cg_support.value < needed.value:
        pieces = is_attention_compiled_piecewise
        mode = CUDAGraphMode.PIECEWISE if pieces else CUDAGraphMode.NONE
    if mode is not cudagraph_mode:
        logger.warning("cudagraph_mode %s lowered to %s by %s", cudagraph_mode, mode, backend)
    return mode
