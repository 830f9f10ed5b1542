"""Which graph a step runs under: found in a table, never made on the way.

Mirrors `vllm/v1/cudagraph_dispatcher.py:15 CudagraphDispatcher`. A wrapper (`graph.py`) trusts what is said
here: the keys below are the only graphs there are. `is_uniform_decode` is the model runner's upstream
(`vllm/v1/worker/gpu_model_runner.py:3701 GPUModelRunner._is_uniform_decode`).

Left out: LoRA; `valid_modes`, with which data parallelism and warm-ups force a mode (take the other modes
into `invalid_modes`); `compile_sizes`, which upstream checks against the padding table.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mini_vllm.cudagraph.modes import BatchDescriptor, CUDAGraphMode, check_count
from mini_vllm.utils.untrusted import shorten_repr


def is_uniform_decode(
    max_num_scheduled_tokens: int, uniform_decode_query_len: int, num_tokens: int, num_reqs: int
) -> bool:
    """True if every request of the step has `uniform_decode_query_len` tokens. Only counts are compared:
    prompts whose last token alone is left pass as well, and rightly so, because a kernel sees no difference.
    Source: `vllm/v1/worker/gpu_model_runner.py:3701 GPUModelRunner._is_uniform_decode`.

    Args:
        max_num_scheduled_tokens: most tokens of any request in this step.
        uniform_decode_query_len: tokens of a decoding request, one and its drafts.
        num_tokens: tokens of the step, without padding.
        num_reqs: requests of the step, without padding.
    """
    return (
        max_num_scheduled_tokens == uniform_decode_query_len
        and num_tokens == max_num_scheduled_tokens * num_reqs
    )


class CudagraphDispatcher:
    """For a step's count of tokens: how it runs, and the padded shape.

    Args:
        cudagraph_mode: resolved, see `resolve_cudagraph_mode`.
        capture_sizes: the rising ladder, see `cudagraph_capture_sizes`. Empty: no graphs.
        max_num_seqs: most requests in a step.
        uniform_decode_query_len: tokens of a decoding request; for more than 1, FULL graphs of decodes
            want a ladder in whole requests (`adjust_cudagraph_sizes_for_spec_decode`).

    Raises ValueError naming the value and the rule.
    """

    def __init__(
        self,
        cudagraph_mode: CUDAGraphMode,
        capture_sizes: Sequence[int],
        max_num_seqs: int,
        uniform_decode_query_len: int = 1,
    ) -> None:
        check_count("max_num_seqs", max_num_seqs)
        check_count("uniform_decode_query_len", uniform_decode_query_len)
        for size in capture_sizes:
            check_count("a capture size", size)
        if list(capture_sizes) != sorted(set(capture_sizes)):
            raise ValueError(
                f"capture_sizes must rise, each size once, got {shorten_repr(list(capture_sizes))}"
            )
        self.cudagraph_mode = cudagraph_mode
        self.capture_sizes = list(capture_sizes)
        self.max_cudagraph_capture_size = self.capture_sizes[-1] if self.capture_sizes else 0
        self.max_num_seqs = max_num_seqs
        self.uniform_decode_query_len = uniform_decode_query_len
        self.cudagraph_keys: dict[CUDAGraphMode, set[BatchDescriptor]] = {
            CUDAGraphMode.PIECEWISE: set(),
            CUDAGraphMode.FULL: set(),
        }
        if cudagraph_mode is not CUDAGraphMode.NONE:
            self._compute_bs_to_padded_graph_size()
            self._initialize_cudagraph_keys()

    def _compute_bs_to_padded_graph_size(self) -> None:
        """For every count of tokens up to the top rung, the rung that it runs as; 0 stays 0
        (`vllm/v1/cudagraph_dispatcher.py:76 CudagraphDispatcher._compute_bs_to_padded_graph_size`)."""
        self._bs_to_padded_graph_size = [0]
        for size in self.capture_sizes:
            below = len(self._bs_to_padded_graph_size)  # the first count above the rung before
            self._bs_to_padded_graph_size += [size] * (size + 1 - below)

    def _create_padded_batch_descriptor(
        self, num_tokens: int, uniform_decode: bool
    ) -> BatchDescriptor:
        """The shape that a FULL graph has for this step; for pieces, `num_reqs` is dropped from it."""
        num_tokens_padded = self._bs_to_padded_graph_size[num_tokens]
        uniform_decode = uniform_decode and self.cudagraph_mode.has_mode(CUDAGraphMode.FULL)
        num_reqs = num_tokens_padded
        if uniform_decode:
            num_reqs, rest = divmod(num_tokens_padded, self.uniform_decode_query_len)
            if rest:
                raise ValueError(
                    f"a uniform decode of {num_tokens} tokens is padded to {num_tokens_padded}, which "
                    f"is no multiple of uniform_decode_query_len {self.uniform_decode_query_len}"
                )
        return BatchDescriptor(num_tokens_padded, min(num_reqs, self.max_num_seqs), uniform_decode)

    def _initialize_cudagraph_keys(self) -> None:
        """All keys that will ever be found, so all graphs that a start captures
        (`vllm/v1/cudagraph_dispatcher.py:170 CudagraphDispatcher.initialize_cudagraph_keys`)."""
        mixed_mode = self.cudagraph_mode.mixed_mode()
        if mixed_mode is not CUDAGraphMode.NONE:
            for size in self.capture_sizes:
                key = self._create_padded_batch_descriptor(size, uniform_decode=False)
                if mixed_mode is CUDAGraphMode.PIECEWISE:
                    key = replace(key, num_reqs=None)
                self.cudagraph_keys[mixed_mode].add(key)
        if not self.cudagraph_mode.separate_routine():
            return
        # More tokens than this no decode batch can have.
        max_num_tokens = self.uniform_decode_query_len * self.max_num_seqs
        for size in self.capture_sizes:
            if self.uniform_decode_query_len <= size <= max_num_tokens:
                key = self._create_padded_batch_descriptor(size, uniform_decode=True)
                self.cudagraph_keys[CUDAGraphMode.FULL].add(key)

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        invalid_modes: AbstractSet[CUDAGraphMode] = frozenset(),
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """How a step of `num_tokens` runs
        (`vllm/v1/cudagraph_dispatcher.py:239 CudagraphDispatcher.dispatch`).

        Args:
            num_tokens: tokens of the step, without padding.
            uniform_decode: every request has `uniform_decode_query_len` of them, see `is_uniform_decode`.
            invalid_modes: runtime modes that this step must not use ({FULL} for cascade attention, upstream).

        Returns: FULL, PIECEWISE or NONE, and the shape to run in. Under NONE that is the shape as it is,
            without padding.

        Raises ValueError if nothing is left to run as. Above the top rung NONE is taken without asking.
        """
        check_count("num_tokens", num_tokens, 0)
        allowed_modes = CUDAGraphMode.valid_runtime_modes() - invalid_modes
        if not allowed_modes:
            raise ValueError("invalid_modes leaves no mode to run in: it holds all three")
        none = CUDAGraphMode.NONE
        if (
            self.cudagraph_mode is none
            or num_tokens > self.max_cudagraph_capture_size
            or allowed_modes == {none}
        ):
            return none, BatchDescriptor(num_tokens)

        # One FULL graph for both kinds knows nothing of uniform batches.
        uniform_decode = uniform_decode and self.cudagraph_mode.separate_routine()
        key = self._create_padded_batch_descriptor(num_tokens, uniform_decode)
        full, piecewise = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
        if full in allowed_modes and key in self.cudagraph_keys[full]:
            return full, key
        key = replace(key, num_reqs=None, uniform=False)
        if piecewise in allowed_modes and key in self.cudagraph_keys[piecewise]:
            return piecewise, key
        if none not in allowed_modes:
            raise ValueError(
                f"no graph for a step of {num_tokens} tokens, and invalid_modes forbids NONE"
            )
        return none, BatchDescriptor(num_tokens)

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        """What to capture, in this order: pieces first, then FULL; in each the largest first, because
        smaller graphs then fit into its memory
        (`vllm/v1/cudagraph_dispatcher.py:330 CudagraphDispatcher.get_capture_descs`)."""
        descs = []
        for mode in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL):
            keys = sorted(self.cudagraph_keys[mode], key=lambda key: key.num_tokens, reverse=True)
            if keys:
                descs.append((mode, keys))
        return descs
