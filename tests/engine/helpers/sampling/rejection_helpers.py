"""For the tests of the rejection sampler: random batches with drafts, and the rule done slowly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mini_vllm.sample.ops import softmax


@dataclass
class Batch:
    """The arguments of `rejection_sample`, for n requests with `len(draft_token_ids)` drafts."""

    draft_token_ids: np.ndarray
    num_draft_tokens: list[int]
    draft_probs: np.ndarray | None
    target_logits: np.ndarray
    bonus_token_ids: np.ndarray
    temperature: np.ndarray | None
    uniform_probs: np.ndarray | None = None
    inv_q: np.ndarray | None = None


def draw_batch(seed: int) -> Batch:
    """Greedy and random rows, 0 to 8 drafts each, 2 to 200 tokens, drafts good and bad."""
    rng = np.random.default_rng([81, seed])
    n, vocab = int(rng.integers(1, 9)), int(rng.integers(2, 201))
    num_draft_tokens = rng.integers(0, rng.integers(1, 9) + 1, n).tolist()
    if not any(num_draft_tokens):  # vLLM does not call the sampler without drafts
        num_draft_tokens[0] = 1
    total = sum(num_draft_tokens)
    logits = (rng.standard_normal((total, vocab)) * rng.uniform(0.3, 4)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.1] = -np.inf  # what top-k and top-p leave
    logits[:, 0] = 0.0
    guess = softmax(
        np.nan_to_num(logits, neginf=-9) + rng.uniform(0, 2) * rng.standard_normal(logits.shape)
    ).astype(np.float32)
    # A drafter's favourite or a draw from it; now and then nonsense, of probability 0 where q says so.
    favourite = rng.random(total) < 0.4
    drawn = (guess / rng.standard_exponential(guess.shape)).argmax(axis=-1)
    drafts = np.where(favourite, guess.argmax(axis=-1), drawn)
    nonsense = rng.random(total) < 0.1
    drafts[nonsense] = rng.integers(0, vocab, nonsense.sum())
    guess[np.flatnonzero(nonsense), drafts[nonsense]] = 0
    kind = rng.choice(3, p=[0.15, 0.25, 0.6])
    temperature = rng.uniform(0.2, 2, n).astype(np.float32)
    if kind == 2:
        temperature[rng.random(n) < 0.4] = 0
    return Batch(
        drafts,
        num_draft_tokens,
        guess if rng.random() < 0.5 else None,
        logits,
        rng.integers(0, vocab, n),
        None if kind == 0 or not temperature.any() else temperature,
    )


def slow_rejection_sample(batch: Batch) -> list[list[int]]:
    """The rule for one request and draft after the other, on the batch's own draws."""
    outputs, at = [], 0
    for i, k in enumerate(batch.num_draft_tokens):
        greedy = batch.temperature is None or batch.temperature[i] == 0
        kept: list[int] = []
        for token in range(at, at + k):
            draft = int(batch.draft_token_ids[token])
            if greedy:
                instead = int(batch.target_logits[token].argmax())
                accepted = draft == instead
            else:
                assert batch.uniform_probs is not None
                assert batch.inv_q is not None
                p = softmax(batch.target_logits[token : token + 1])[0]
                q = np.zeros_like(p) if batch.draft_probs is None else batch.draft_probs[token]
                if batch.draft_probs is None:
                    q[draft] = 1
                accepted = q[draft] > 0 and p[draft] / q[draft] >= batch.uniform_probs[token]
                left = np.maximum(p - q, 0)
                instead = int((left * batch.inv_q[i]).argmax())
            kept.append(draft if accepted else instead)
            if not accepted:
                break
        else:
            kept.append(int(batch.bonus_token_ids[i]))
        outputs.append(kept)
        at += k
    return outputs
