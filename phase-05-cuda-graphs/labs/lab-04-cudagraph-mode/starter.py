"""Lab 05-04: the mode, the keys, the dispatch of a step. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from mini_vllm.cudagraph import AttentionCGSupport, BatchDescriptor, CUDAGraphMode

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


def resolve_cudagraph_mode(
    cudagraph_mode: CUDAGraphMode,
    min_cg_support: AttentionCGSupport,
    *,
    uniform_decode_query_len: int = 1,
    is_attention_compiled_piecewise: bool = True,
) -> CUDAGraphMode:
    """The mode that is left when the attention backend has been asked.

    A mode is a wish for two kinds of batches, `decode_mode()` and `mixed_mode()`. FULL puts attention into
    the graph, so the backend must allow it:

    - for mixed batches only ALWAYS will do. If it allows less, decode batches keep FULL, and mixed ones fall
      to pieces, or to nothing where the model is not split. But where it allows nothing at all, NEVER, the
      wish is an error and not lowered.
    - for decode batches UNIFORM_BATCH will do, and UNIFORM_SINGLE_TOKEN_DECODE where a decode has one token.
      If it allows less, both kinds fall to pieces, or to nothing where the model is not split.

    The second is asked of what the first has left. What the backend allows stays as it was wished, even
    pieces of a model that is not split, which the config has looked at before.

    Args:
        cudagraph_mode: what was asked for.
        min_cg_support: the lowest level among the model's attention backends.
        uniform_decode_query_len: tokens of a decoding request.
        is_attention_compiled_piecewise: the model is split at attention.

    Raises ValueError, with the mode's name, for the wish that is not lowered.
    """
    raise NotImplementedError


def adjust_cudagraph_sizes_for_spec_decode(
    sizes: Sequence[int], uniform_decode_query_len: int
) -> list[int]:
    """The ladder in whole requests: each size rounded up to a multiple of the query length, none above the
    old top, each once. Where that leaves none, and the top holds one request, one request is the only size.

    Args:
        sizes: a rising ladder; of an empty one an empty one is left.
        uniform_decode_query_len: tokens of a decoding request.

    Raises ValueError, with both numbers, where one request is longer than the top.
    """
    raise NotImplementedError


class CudagraphDispatcher:
    """All graphs there are, and which of them a step is replayed from.

    Attributes:
        cudagraph_keys: for PIECEWISE and for FULL the set of `BatchDescriptor` that there is a graph of.

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
        """Make all keys.

        Args:
            cudagraph_mode: resolved.
            capture_sizes: the rising ladder, in whole requests where that matters; may be empty.
            max_num_seqs: most requests in a step.
            uniform_decode_query_len: tokens of a decoding request.
        """
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

        Raises ValueError if `invalid_modes` holds all three; or if it holds NONE, and a step that the ladder
        holds finds no graph (with the count). But above the top, and in mode NONE, it is NONE without asking.
        """
        raise NotImplementedError

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        """What a start records, in its order: (PIECEWISE, its keys), then (FULL, its keys), each with the
        largest key first; a mode without keys is left out."""
        raise NotImplementedError
