"""Lab 05-04: the keys, and the dispatch of a step. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


def predictions() -> dict[str, str]:
    """Your answers to the README's eight questions, under the names that stand there: how the step runs and
    as how many rows, for instance `"PIECEWISE 16"`."""
    raise NotImplementedError


def is_uniform_decode(num_scheduled_tokens: Sequence[int], uniform_decode_query_len: int) -> bool:
    """Whether a step is taken for a decode batch: every request has the count of tokens that a decode has.

    Args:
        num_scheduled_tokens: tokens of each request in this step, at least one request.
        uniform_decode_query_len: tokens of a decoding request, 1 and its drafts.
    """
    raise NotImplementedError


class CudagraphDispatcher:
    """All graphs there are, and which of them a step is replayed from.

    Attributes:
        cudagraph_mode, max_num_seqs, uniform_decode_query_len: as given.
        cudagraph_keys: for PIECEWISE and for FULL the set of `BatchDescriptor` that there is a graph of.
        padded_to: for each count of tokens, from 0 to the top size, the lowest size that holds them.

    A key of pieces has a count of tokens and nothing else, because what depends on requests is not in them.
    A key of a FULL graph also says for how many requests it was recorded. In a uniform key each of them has
    `uniform_decode_query_len` tokens. In any other there are as many as tokens, but at most `max_num_seqs`.

    Where the mode tells decode batches from mixed ones (`separate_routine()`), FULL keys are uniform. They
    begin at one whole request and end at `max_num_seqs` of them. Where the mode is FULL for all, no key is
    uniform, and every size has one. Mixed batches have keys at every size, in their own mode.
    """

    def __init__(
        self,
        cudagraph_mode: CUDAGraphMode,
        capture_sizes: Sequence[int],
        max_num_seqs: int,
        uniform_decode_query_len: int = 1,
    ) -> None:
        """Keep what is given, and make all keys.

        Args:
            cudagraph_mode: what is left when the attention backend has been asked.
            capture_sizes: the rising ladder, in whole requests where that matters; may be empty.
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
        """Put into `cudagraph_keys` what there will be graphs of, and nothing comes later."""
        raise NotImplementedError

    def _descriptor(self, num_tokens: int, uniform: bool) -> BatchDescriptor:
        """The key of a FULL graph that holds so many tokens, whether there is that graph or not. Good for
        keys and for look-ups alike. `num_tokens` is never above the top size."""
        raise NotImplementedError

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        invalid_modes: AbstractSet[CUDAGraphMode] = frozenset(),
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """How a step runs, and the shape that it is padded to.

        The shape is the lowest size that holds the step. If a FULL graph of that shape is there, it is taken,
        else pieces of it, else NONE, and then the descriptor has the count of tokens as it is, without more.
        A larger size than the lowest is never tried. A mode that treats all batches alike does not look at
        `uniform_decode`.

        Args:
            num_tokens: tokens of the step.
            uniform_decode: see the function above.
            invalid_modes: what this step must not run as.

        Raises ValueError if `invalid_modes` holds all three, whatever the step.

        After that, a step above the top, or in mode NONE, runs as NONE, and nobody asks whether NONE is
        invalid. In a step that the ladder holds, ValueError with the count if no graph is found and NONE is
        invalid.
        """
        raise NotImplementedError

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        """What a start records, in its order: (PIECEWISE, its keys), then (FULL, its keys), each with the
        largest key first; a mode without keys is left out."""
        found = []
        for mode in (PIECEWISE, FULL):
            keys = sorted(self.cudagraph_keys[mode], key=lambda key: -key.num_tokens)
            if keys:
                found.append((mode, keys))
        return found
