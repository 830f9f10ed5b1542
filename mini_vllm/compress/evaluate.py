"""How much a quantised model has lost: perplexity, and distance from the model that it was made of.

All of it is teacher-forced: a document goes through the model once, as a prompt does, and position `i`
says how likely it holds each token for position `i + 1`. So two models are compared on the same past,
also after the first token in which they would have differed. Works with every model class whose `forward`
takes numpy arrays, because it only calls `forward` and `compute_logits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.ops import compute_logprobs
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.threads import shared_products
from mini_vllm.utils.untrusted import parse_json, read_bytes, shorten_repr

Array = NDArray[np.float32]
Document = Sequence[int]

TEXTS = Path(__file__).parent / "texts"
CALIBRATION = TEXTS / "calibration.json"
"""128 documents of the training split of the shipped checkpoint's texts: what methods may look at."""
HELD_OUT = TEXTS / "held_out.json"
"""96 documents that it was never trained on: what nothing is tuned on."""

BATCH_TOKENS = 2048
"""Documents go through the model together, up to about so many tokens."""


def load_documents(path: Path, folder: str | Path, limit: int | None = None) -> list[list[int]]:
    """Token ids of the texts in `path`, a JSON list of strings, as `folder`'s tokenizer has them.

    A text holds its special tokens, such as `<eos>`, in writing; the tokenizer adds those of the beginning.

    Args:
        limit: take only so many, from the beginning.

    Raises:
        ValueError: `path` cannot be read, or is no list of texts.
        CheckpointError: `folder` has no tokenizer that can be read.
    """
    try:
        texts = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a JSON list of texts: {error}") from error
    if not isinstance(texts, list) or not texts:
        raise ValueError(
            f"{path} must hold a JSON list of texts, at least one, got {shorten_repr(texts)}"
        )
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise ValueError(
                f"{path}: entry {i} must be a text that is not empty, got {shorten_repr(text)}"
            )
    tokenizer = Tokenizer.from_folder(folder)
    return [tokenizer.encode(text) for text in texts[:limit]]


def check_documents(model: LlamaForCausalLM, documents: Sequence[Document]) -> None:
    """Raise ValueError unless each document has at least two tokens, no more than the model admits, and
    only such as the model has an embedding for: a tokenizer may have more."""
    if not documents:
        raise ValueError("documents is empty: give at least one")
    if model.config.architecture != "LlamaForCausalLM":
        raise ValueError(f"a {model.config.architecture} cannot be evaluated: only a Llama can")
    most = model.config.max_position_embeddings
    for i, ids in enumerate(documents):
        if not 2 <= len(ids) <= most:
            raise ValueError(
                f"document {i} has {len(ids)} tokens, and it takes 2 for one prediction; the model's "
                f"max_position_embeddings is {most}"
            )
        if not 0 <= min(ids) <= max(ids) < model.config.vocab_size:
            raise ValueError(
                f"document {i} has token ids {min(ids)} to {max(ids)}; the model's vocab_size is "
                f"{model.config.vocab_size}"
            )


def hidden_states(
    model: LlamaForCausalLM, documents: Sequence[Document]
) -> Iterator[tuple[Document, Array]]:
    """Each document with the hidden states of its tokens, float32 `[n, hidden_size]`.

    A batch of documents is one step of prompts. Each has one block of the KV cache, as long as the longest.
    """
    batch: list[Document] = []
    for i, ids in enumerate(documents):
        batch.append(ids)
        if i + 1 == len(documents) or sum(map(len, batch)) >= BATCH_TOKENS:
            yield from zip(batch, _prefill(model, batch), strict=True)
            batch = []


def _prefill(model: LlamaForCausalLM, batch: Sequence[Document]) -> list[Array]:
    lengths = np.array([len(ids) for ids in batch], np.int32)
    block_size = int(lengths.max())
    positions = np.concatenate([np.arange(n) for n in lengths])
    block_ids = np.arange(len(batch), dtype=np.int32)
    query_start_loc = np.append(0, np.cumsum(lengths)).astype(np.int32)
    metadata = AttentionMetadata(
        query_start_loc,
        lengths,
        block_ids[:, None],
        np.repeat(block_ids.astype(np.int64), lengths) * block_size + positions,
        block_size,
    )
    config = model.config
    shape = model.attention.get_kv_cache_shape(
        len(batch), block_size, config.num_key_value_heads, config.head_dim
    )
    kv_caches = [np.zeros(shape, np.float32) for _ in range(config.num_hidden_layers)]
    hidden = model.forward(np.concatenate(batch), positions, kv_caches, metadata)
    return np.split(hidden, query_start_loc[1:-1])


def logprobs(model: LlamaForCausalLM, ids: Document) -> Array:
    """Natural logarithm of the probability of every token at every position: `[n, vocab_size]`.

    Row `i` is about the token after `ids[i]`; the last row has no answer in `ids`.
    """
    check_documents(model, [ids])
    with shared_products():
        ((_, hidden),) = hidden_states(model, [ids])
        return compute_logprobs(model.compute_logits(hidden))


def perplexity(model: LlamaForCausalLM, documents: Sequence[Document]) -> float:
    """`exp` of the mean, over all predicted tokens, of minus the log probability of the right one.

    1 is certainty; `vocab_size` is a guess. The first token of a document is not predicted.

    Raises:
        ValueError: see `check_documents`.
    """
    return evaluate(model, documents).perplexity


def kl(reference: Array, other: Array) -> float:
    """Kullback-Leibler divergence of `other` from `reference`, in nats, mean over the rows.

    Args:
        reference, other: log probabilities `[n, vocab_size]`, of the same positions.
    """
    reference = np.asarray(reference, np.float64)
    return float((np.exp(reference) * (reference - other)).sum(axis=-1).mean())


def greedy_agreement(reference: Array, other: Array) -> float:
    """Share of the rows in which both have the same likeliest token, 0 to 1."""
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measures.

    Attributes:
        tokens: predicted tokens.
        nll: mean of minus the log probability of the right token, nats.
        kl: divergence from the reference model, nats a token; 0 without a reference.
        greedy_agreement: share of tokens whose likeliest guess is the reference's; 1 without.
    """

    tokens: int
    nll: float
    kl: float = 0.0
    greedy_agreement: float = 1.0

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)


def evaluate(
    model: LlamaForCausalLM,
    documents: Sequence[Document],
    reference: LlamaForCausalLM | None = None,
) -> Evaluation:
    """Perplexity of `model` on `documents`; with a reference also its distance from that.

    Raises:
        ValueError: see `check_documents`, for either model; or their vocabularies differ in size.
    """
    check_documents(model, documents)
    if reference is not None:
        check_documents(reference, documents)
        mine, theirs = model.config.vocab_size, reference.config.vocab_size
        if mine != theirs:
            raise ValueError(
                f"the model has a vocab_size of {mine} and the reference one of {theirs}: "
                "probabilities of different tokens cannot be compared"
            )
    with shared_products():
        return _evaluate(model, documents, reference)


def _evaluate(
    model: LlamaForCausalLM,
    documents: Sequence[Document],
    reference: LlamaForCausalLM | None,
) -> Evaluation:
    others = hidden_states(reference, documents) if reference is not None else None
    tokens = 0
    nll = divergence = agreement = 0.0
    for ids, hidden in hidden_states(model, documents):
        mine = compute_logprobs(model.compute_logits(hidden[:-1]))
        rows = len(mine)
        tokens += rows
        nll -= float(mine[np.arange(rows), np.asarray(ids[1:])].sum(dtype=np.float64))
        if reference is not None and others is not None:
            theirs = compute_logprobs(reference.compute_logits(next(others)[1][:-1]))
            divergence += rows * kl(theirs, mine)
            agreement += rows * greedy_agreement(theirs, mine)
    if reference is None:
        return Evaluation(tokens, nll / tokens)
    return Evaluation(tokens, nll / tokens, divergence / tokens, agreement / tokens)
