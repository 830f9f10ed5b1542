"""Lab 05-04: the keys, and the dispatch of a step. The reference solution."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


def predictions() -> dict[str, str]:
    """The README's eight questions."""
    return {
        "Kim alone": "FULL 1",
        "33 decode": "FULL 40",
        "33 decode, for 33": "PIECEWISE 40",
        "32 decode, and Lou's prompt of 8": "PIECEWISE 40",
        "33 prompts with one token left": "FULL 40",
        "33 decode, Lou sends 3,000 tokens": "NONE 3033",
        "33 decode, FULL_DECODE_ONLY and Lou's prompt of 8": "NONE 41",
        "256 decode, cascade": "PIECEWISE 256",
    }


def is_uniform_decode(num_scheduled_tokens: Sequence[int], uniform_decode_query_len: int) -> bool:
    """Whether a step of requests with these counts of tokens is taken for a decode."""
    return all(count == uniform_decode_query_len for count in num_scheduled_tokens)


class CudagraphDispatcher:
    """Which graphs there are, and which of them a step is replayed from."""

    def __init__(
        self,
        cudagraph_mode: CUDAGraphMode,
        capture_sizes: Sequence[int],
        max_num_seqs: int,
        uniform_decode_query_len: int = 1,
    ) -> None:
        """Keep what is given, and make all keys.

        Args:
            cudagraph_mode: the mode, already lowered to what the attention backend supports.
            capture_sizes: rising, in whole requests where that matters; may be empty.
            max_num_seqs: most requests in a step.
            uniform_decode_query_len: tokens of a decoding request.
        """
        self.cudagraph_mode = cudagraph_mode
        self.max_num_seqs = max_num_seqs
        self.uniform_decode_query_len = uniform_decode_query_len
        self.cudagraph_keys: dict[CUDAGraphMode, set[BatchDescriptor]] = {
            PIECEWISE: set(),
            FULL: set(),
        }
        self.padded_to = [0]
        for size in capture_sizes:
            self.padded_to.extend([size] * (size + 1 - len(self.padded_to)))
        self._make_keys(capture_sizes)

    def _make_keys(self, capture_sizes: Sequence[int]) -> None:
        """Put into `cudagraph_keys` what there will be graphs of."""
        mode, query_len = self.cudagraph_mode, self.uniform_decode_query_len
        largest = query_len * self.max_num_seqs
        for size in capture_sizes:
            mixed = self._descriptor(size, uniform=False)
            if mode.mixed_mode() is PIECEWISE:
                self.cudagraph_keys[PIECEWISE].add(replace(mixed, num_reqs=None))
            elif mode.mixed_mode() is FULL:
                self.cudagraph_keys[FULL].add(mixed)
            fits = query_len <= size <= largest
            if mode.separate_routine() and fits:
                self.cudagraph_keys[FULL].add(self._descriptor(size, uniform=True))

    def _descriptor(self, num_tokens: int, uniform: bool) -> BatchDescriptor:
        """The key of a FULL graph that holds so many tokens."""
        padded = self.padded_to[num_tokens]
        num_reqs = padded // self.uniform_decode_query_len if uniform else padded
        return BatchDescriptor(padded, min(num_reqs, self.max_num_seqs), uniform)

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        invalid_modes: AbstractSet[CUDAGraphMode] = frozenset(),
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """How a step runs, and the shape that it is padded to."""
        allowed = {NONE, PIECEWISE, FULL} - invalid_modes
        if not allowed:
            raise ValueError("all three modes are invalid, so the step cannot run")
        as_it_is = NONE, BatchDescriptor(num_tokens)
        if num_tokens >= len(self.padded_to) or allowed == {NONE}:
            return as_it_is
        uniform = uniform_decode and self.cudagraph_mode.separate_routine()
        key = self._descriptor(num_tokens, uniform)
        if FULL in allowed and key in self.cudagraph_keys[FULL]:
            return FULL, key
        key = BatchDescriptor(key.num_tokens)
        if PIECEWISE in allowed and key in self.cudagraph_keys[PIECEWISE]:
            return PIECEWISE, key
        if NONE in allowed or self.cudagraph_mode is NONE:
            return as_it_is
        raise ValueError(f"no graph holds {num_tokens} tokens, and NONE is invalid")

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        """What a start records, in its order: (PIECEWISE, its keys), then (FULL, its keys), each with the
        largest key first; a mode without keys is left out."""
        found = []
        for mode in (PIECEWISE, FULL):
            keys = sorted(self.cudagraph_keys[mode], key=lambda key: -key.num_tokens)
            if keys:
                found.append((mode, keys))
        return found
