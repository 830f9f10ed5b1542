"""Lab 05-04: the keys, and the dispatch of a step. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


def predictions() -> dict[str, str]:
    """Your answers to the README's eight questions, under its names: how the step runs and as how many
    rows, for instance `"PIECEWISE 16"`."""
    raise NotImplementedError


def is_uniform_decode(num_scheduled_tokens: Sequence[int], uniform_decode_query_len: int) -> bool:
    """Whether a step counts as a decode batch: every request has as many tokens as a decode has.

    Args:
        num_scheduled_tokens: tokens of each request in this step, at least one request.
        uniform_decode_query_len: tokens of a decoding request, 1 plus its speculative tokens.
    """
    raise NotImplementedError


class CudagraphDispatcher:
    """Which graphs there are, and which of them a step is replayed from.

    Attributes:
        cudagraph_mode, max_num_seqs, uniform_decode_query_len: as given.
        cudagraph_keys: for PIECEWISE and for FULL, each `BatchDescriptor` that has a graph.
        padded_to: for each number of tokens, from 0 to the largest size, the smallest size that holds them.

    A key of pieces has a number of tokens and nothing else, because nothing in a piece depends on requests.
    A key of a FULL graph also says for how many requests it was recorded. In a uniform key each of these has
    `uniform_decode_query_len` tokens. Any other key has as many requests as tokens, but at most
    `max_num_seqs`.

    If the mode tells decode batches from mixed ones (`separate_routine()`), FULL keys are uniform. They
    begin at one whole request and end at `max_num_seqs` of them. If the mode is FULL for all, no key is
    uniform, and every size has a key. Mixed batches have keys at every size, in their own mode.
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
        """Put a key into `cudagraph_keys` for each graph there will be. None is added later."""
        raise NotImplementedError

    def _descriptor(self, num_tokens: int, uniform: bool) -> BatchDescriptor:
        """The key of a FULL graph that holds this many tokens, whether that graph exists or not. It serves
        keys and look-ups alike. `num_tokens` is never above the largest size."""
        raise NotImplementedError

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        invalid_modes: AbstractSet[CUDAGraphMode] = frozenset(),
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """How a step runs, and the shape that it is padded to.

        The shape is the smallest size that holds the step. A FULL graph of that shape is taken if there is
        one, else pieces of that size, else NONE; then the descriptor has only the number of tokens, unpadded.
        No larger size is ever tried. A mode that treats all batches alike does not look at
        `uniform_decode`.

        Args:
            num_tokens: tokens of the step.
            uniform_decode: see the function above.
            invalid_modes: modes that this step must not run in.

        Raises ValueError if `invalid_modes` holds all three, whatever the step.

        After that, a step above the largest size, or in mode NONE, runs as NONE even if NONE is invalid. In
        any other step, ValueError with the number of tokens if no graph is found and NONE is invalid.
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
