"""What a batch asks of the sampler, a row a request.

Mirrors `vllm/v1/sample/metadata.py` and the state that `vllm/v1/sample/logits_processor/builtin.py` keeps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.ops import (
    BoolArray,
    FloatArray,
    IntArray,
    apply_bad_words,
    apply_penalties,
    get_token_bin_counts_and_mask,
)
from mini_vllm.sampling_params import SAMPLING_EPS, SamplingParams, SamplingType

if TYPE_CHECKING:
    from mini_vllm.sample.logits_processor import LogitsProcessors


def make_generator(sampling_params: SamplingParams) -> TorchGenerator | None:
    """A request's own random stream, or None where it has no seed or is greedy.

    Source:
    `vllm/v1/worker/gpu_model_runner.py:1195 in GPUModelRunner._update_states`.
    """
    if sampling_params.sampling_type != SamplingType.RANDOM_SEED or sampling_params.seed is None:
        return None
    return TorchGenerator(sampling_params.seed)


def to_float32(values: Sequence[float]) -> FloatArray:
    """Parameters as the sampler computes with them: a temperature of 1e300 is infinite, and draws from
    all tokens alike, as at the pin (`vllm/v1/worker/gpu_input_batch.py:386 in InputBatch.add_request`).
    """
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


class SamplingRow(Protocol):
    """What the sampler reads of a request that samples in this step."""

    @property
    def sampling_params(self) -> SamplingParams: ...
    @property
    def prompt_token_ids(self) -> list[int]: ...
    @property
    def output_token_ids(self) -> list[int]:
        """Live: the engine appends each new token to this very list."""
        ...

    @property
    def generator(self) -> TorchGenerator | None: ...


RepeatedRows = Sequence[tuple[int, list[int]]]
"""For each new row the row that it is taken from, and the tokens that follow that row's outputs."""


class MinTokensState:
    """The rows that may not stop yet
    (`vllm/v1/sample/logits_processor/builtin.py:167 MinTokensLogitsProcessor`).

    Attributes:
        min_toks: row to its minimum, its outputs (live) and the tokens that would stop it.
        logits_slice: rows and tokens to bar, both [m] int64, for `apply_min_tokens`.
    """

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int) -> None:
        self.min_toks: dict[int, tuple[int, list[int], list[int]]] = {}
        for i, row in enumerate(rows):
            params = row.sampling_params
            # A checkpoint may name end-of-sequence ids that its head cannot produce.
            stop_token_ids = [t for t in params.all_stop_token_ids if t < vocab_size]
            self.min_toks[i] = (params.min_tokens, row.output_token_ids, stop_token_ids)
        self.logits_slice: tuple[IntArray, IntArray]
        self.update_state()

    def update_state(self) -> None:
        """Drop the rows that have reached their minimum."""
        self.min_toks = {i: entry for i, entry in self.min_toks.items() if len(entry[1]) < entry[0]}
        pairs = [(i, t) for i, (_, _, stop_tok_ids) in self.min_toks.items() for t in stop_tok_ids]
        reqs, tok_ids = np.array(pairs, np.int64).reshape(-1, 2).T
        self.logits_slice = reqs, tok_ids

    def repeat_rows(self, rows: RepeatedRows) -> MinTokensState:
        """The same for other rows; see `SamplingMetadata.repeat_rows`."""
        repeated = copy.copy(self)
        repeated.min_toks = {}
        for new, (row, tokens) in enumerate(rows):
            if row in self.min_toks:
                min_tokens, output_token_ids, stop_token_ids = self.min_toks[row]
                repeated.min_toks[new] = min_tokens, [*output_token_ids, *tokens], stop_token_ids
        repeated.update_state()
        return repeated


class BadWordsState:
    """The rows with bad words: each row's words as token ids, and its outputs (live)."""

    def __init__(self, rows: Sequence[SamplingRow]) -> None:
        self.entries = [
            (i, words, row.output_token_ids)
            for i, row in enumerate(rows)
            if (words := row.sampling_params.bad_words_token_ids)
        ]

    def apply(self, logits: FloatArray) -> FloatArray:
        """`apply_bad_words` with the outputs as they are now."""
        bad_words_token_ids = {i: words for i, words, _ in self.entries}
        return apply_bad_words(logits, bad_words_token_ids, {i: ids for i, _, ids in self.entries})

    def repeat_rows(self, rows: RepeatedRows) -> BadWordsState:
        """The same for other rows; see `SamplingMetadata.repeat_rows`."""
        repeated = copy.copy(self)
        entries = {i: (words, ids) for i, words, ids in self.entries}
        repeated.entries = [
            (new, entries[row][0], [*entries[row][1], *tokens])
            for new, (row, tokens) in enumerate(rows)
            if row in entries
        ]
        return repeated


class PenaltyState:
    """Token counts of the rows that use a penalty, kept up to date as their outputs grow.

    vLLM counts every output from its start in each step
    (`vllm/v1/sample/ops/penalties.py:11 apply_all_penalties`). Here a step adds one to one bin per
    row.

    Attributes:
        rows: [m], the rows of the batch. The arrays below have one entry per such row.
        prompt_mask: [m, V] bool. output_bin_counts: [m, V] float32.
        presence, frequency, repetition: [m] float32.
    """

    def __init__(self, rows: Sequence[SamplingRow], indices: list[int], vocab_size: int) -> None:
        chosen = [rows[i] for i in indices]
        params = [row.sampling_params for row in chosen]
        self.rows = np.array(indices, np.int64)
        self.presence = to_float32([p.presence_penalty for p in params])
        self.frequency = to_float32([p.frequency_penalty for p in params])
        self.repetition = to_float32([p.repetition_penalty for p in params])
        prompts = [row.prompt_token_ids for row in chosen]
        _, self.prompt_mask = get_token_bin_counts_and_mask(prompts, vocab_size)
        self._outputs = [row.output_token_ids for row in chosen]
        self.output_bin_counts, _ = get_token_bin_counts_and_mask(self._outputs, vocab_size)
        self._counted = [len(ids) for ids in self._outputs]

    def update_state(self) -> None:
        """Count the tokens appended since the last call; upstream counts all of them in each step
        (`vllm/v1/sample/ops/penalties.py:11 apply_all_penalties`)."""
        rows: list[int] = []
        tokens: list[int] = []
        for row, ids in enumerate(self._outputs):
            fresh = ids[self._counted[row] :]
            rows += [row] * len(fresh)
            tokens += fresh
            self._counted[row] = len(ids)
        np.add.at(self.output_bin_counts, (rows, tokens), 1)

    def repeat_rows(self, rows: RepeatedRows) -> PenaltyState:
        """The same for other rows; see `SamplingMetadata.repeat_rows`."""
        self.update_state()
        entries = {row: entry for entry, row in enumerate(self.rows.tolist())}
        chosen = [
            (new, entries[row], tokens) for new, (row, tokens) in enumerate(rows) if row in entries
        ]
        repeated = copy.copy(self)
        repeated.rows = np.array([new for new, _, _ in chosen], np.int64)
        taken = np.array([entry for _, entry, _ in chosen], np.int64)
        for name in ("prompt_mask", "output_bin_counts", "presence", "frequency", "repetition"):
            setattr(repeated, name, getattr(self, name)[taken])
        repeated._outputs = [[*self._outputs[entry], *tokens] for _, entry, tokens in chosen]
        repeated._counted = [self._counted[entry] for entry in taken]
        return repeated

    def apply(self, logits: FloatArray) -> FloatArray:
        """`apply_penalties` on this state's rows of the [n, V] logits."""
        logits = logits.copy()
        logits[self.rows] = apply_penalties(
            logits[self.rows],
            self.prompt_mask,
            self.output_bin_counts,
            self.presence,
            self.frequency,
            self.repetition,
        )
        return logits


@dataclass(slots=True)
class SamplingMetadata:
    """What a batch of n rows asks of the sampler, as arrays
    (`vllm/v1/sample/metadata.py:15 SamplingMetadata`).

    None means that no row uses the step. Good for as long as the rows and their parameters stay
    the same: outputs that grow meanwhile are seen.
    """

    shape: tuple[int, int]
    """(n, V), which the logits must have."""
    all_greedy: bool
    all_random: bool
    temperature: FloatArray | None
    """[n], 0 in greedy rows."""
    top_p: FloatArray | None
    top_k: IntArray | None
    """[n], V in rows that do not use it."""
    min_p: FloatArray | None
    generators: dict[int, TorchGenerator]
    logprob_token_ids: dict[int, list[int]]
    max_num_logprobs: int | None
    """The most logprobs that a row asks for; 0 is the drawn token's only."""
    allowed_token_ids_mask: BoolArray | None
    """[n, V], True where a token is barred."""
    bad_words: BadWordsState | None
    min_tokens: MinTokensState | None
    logit_bias: tuple[IntArray, IntArray, FloatArray] | None
    """The arguments of `apply_logit_bias` after the logits."""
    penalties: PenaltyState | None
    logitsprocs: LogitsProcessors | None

    @classmethod
    def build(
        cls,
        rows: Sequence[SamplingRow],
        vocab_size: int,
        logitsprocs: LogitsProcessors | None = None,
    ) -> SamplingMetadata:
        """Collect the parameters of the rows that sample together
        (`vllm/v1/worker/gpu_input_batch.py:831 InputBatch._make_sampling_metadata`).

        Args:
            rows: the requests, in the order of the logits' rows.
            vocab_size: V.
            logitsprocs: another's processors; they hear of the rows by `update_state`.

        Raises:
            ValueError: a token id outside the vocabulary, in the prompt or output of a row
                with penalties.
        """
        params = [row.sampling_params for row in rows]
        temperatures = [p.temperature for p in params]
        all_greedy = max(temperatures, default=0.0) < SAMPLING_EPS
        biases = [
            (i, *b) for i, p in enumerate(params) if p.logit_bias for b in p.logit_bias.items()
        ]
        penalised = [
            i
            for i, p in enumerate(params)
            if p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0
        ]
        counts = [p.logprobs for p in params if p.logprobs is not None and not p.logprob_token_ids]
        metadata = cls(
            shape=(len(rows), vocab_size),
            all_greedy=all_greedy,
            all_random=not all_greedy and min(temperatures) >= SAMPLING_EPS,
            temperature=None if all_greedy else to_float32(temperatures),
            top_p=_column([p.top_p for p in params], off=1.0),
            top_k=None,
            min_p=_column([p.min_p for p in params], off=0.0),
            generators={
                i: row.generator
                for i, row in enumerate(rows)
                if row.generator is not None and temperatures[i] >= SAMPLING_EPS
            },
            logprob_token_ids={
                i: p.logprob_token_ids for i, p in enumerate(params) if p.logprob_token_ids
            },
            max_num_logprobs=(
                None if not counts else vocab_size if -1 in counts else min(max(counts), vocab_size)
            ),
            allowed_token_ids_mask=None,
            bad_words=BadWordsState(rows) if any(p.bad_words_token_ids for p in params) else None,
            min_tokens=MinTokensState(rows, vocab_size)
            if any(p.min_tokens for p in params)
            else None,
            logit_bias=None,
            penalties=PenaltyState(rows, penalised, vocab_size) if penalised else None,
            logitsprocs=logitsprocs,
        )
        if any(0 < p.top_k < vocab_size for p in params):
            metadata.top_k = np.array(
                [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], np.int64
            )
        if any(p.allowed_token_ids for p in params):
            metadata.allowed_token_ids_mask = barred = np.zeros((len(rows), vocab_size), np.bool_)
            for i, p in enumerate(params):
                if p.allowed_token_ids:
                    barred[i] = True
                    barred[i, p.allowed_token_ids] = False
        if biases:
            row_ids, token_ids, values = zip(*biases, strict=True)
            metadata.logit_bias = (
                np.array(row_ids, np.int64),
                np.array(token_ids, np.int64),
                to_float32(values),
            )
        return metadata

    def repeat_rows(self, rows: RepeatedRows) -> SamplingMetadata:
        """The metadata of rows that are taken from these, each as it is after some more tokens.

        This is how speculative decoding asks for the draft at a request's place i: as a row of that
        request whose outputs end with the i drafts before it. At the pin each of the arrays is
        repeated by itself
        (`vllm/v1/sample/rejection_sampler.py:283 RejectionSampler.apply_logits_processors`).

        Args:
            rows: for each new row the row that it is taken from, and the tokens that follow that row's
                outputs.

        The new rows have no generators, no `logit_bias`, and do not see outputs that come later.
        """
        taken = np.array([row for row, _ in rows], np.int64)
        mask = self.allowed_token_ids_mask
        return replace(
            self,
            shape=(len(rows), self.shape[1]),
            temperature=None if self.temperature is None else self.temperature[taken],
            top_p=None if self.top_p is None else self.top_p[taken],
            top_k=None if self.top_k is None else self.top_k[taken],
            min_p=None if self.min_p is None else self.min_p[taken],
            generators={},
            allowed_token_ids_mask=None if mask is None else mask[taken],
            bad_words=None if self.bad_words is None else self.bad_words.repeat_rows(rows),
            min_tokens=None if self.min_tokens is None else self.min_tokens.repeat_rows(rows),
            logit_bias=None,
            penalties=None if self.penalties is None else self.penalties.repeat_rows(rows),
        )


def _column(values: list[float], off: float) -> FloatArray | None:
    """One parameter of all rows, or None where every row has it off."""
    return None if values.count(off) == len(values) else to_float32(values)
