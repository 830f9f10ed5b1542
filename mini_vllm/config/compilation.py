"""The settings of CUDA graphs.

Mirrors the part of `vllm/config/compilation.py` that says what is captured. Left out: compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.config.checks import check_one_of
from mini_vllm.utils.untrusted import shorten_repr

CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True)
class CompilationConfig:
    """Which steps run as CUDA graphs.

    Attributes:
        cudagraph_mode: `NONE`, `PIECEWISE`, `FULL`, `FULL_DECODE_ONLY` or `FULL_AND_PIECEWISE`: which
            steps run as CUDA graphs (with numpy: as simulated ones, `cudagraph/`). NONE, as vLLM has it on a
            CPU; on a GPU it is FULL_AND_PIECEWISE at the pin, where the backend can do it
            (`vllm/config/vllm.py:230`).
        cudagraph_capture_sizes: tokens of the batches to capture; None: vLLM's ladder for
            `max_num_seqs`. What is above the token budget is left out.
    """

    cudagraph_mode: str = "NONE"
    cudagraph_capture_sizes: Sequence[int] | None = None

    def _check_compilation(self, token_budget: int) -> None:
        check_one_of("cudagraph_mode", self.cudagraph_mode, CUDAGRAPH_MODES)
        sizes = self.cudagraph_capture_sizes
        if sizes is None:
            return
        if not isinstance(sizes, list | tuple) or not sizes:
            raise ValueError(
                f"cudagraph_capture_sizes must be a list of at least one size, got {shorten_repr(sizes)}"
            )
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(
                    "a size in cudagraph_capture_sizes must be an integer of at least 1, got "
                    f"{shorten_repr(size)}"
                )
        if min(sizes) > token_budget:
            raise ValueError(
                f"cudagraph_capture_sizes ({shorten_repr(list(sizes))}) are all above "
                f"max_num_batched_tokens ({token_budget}): no step could use them"
            )
