"""The sampler and what is wrong without one of its parts: set-up for the deep dive.

Each function runs texts with one part left out or done wrong, and says what came of it.

    python phase-09-sampling/broken_sampling.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from draws import PROMPT, letter, row, token

from mini_vllm import LLM, SamplingParams
from mini_vllm.sample import ops
from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    make_batch_update,
)
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker import gpu_input_batch


def text(beside: Sequence[dict[str, Any]] = (), llm: LLM | None = None, **asked: Any) -> str:
    """What a request with these parameters writes after "Why ", 40 tokens; with others in its batch."""
    params = [SamplingParams(**{"max_tokens": 40} | given) for given in (asked, *beside)]
    return (llm or LLM()).generate([PROMPT] * len(params), params)[0].outputs[0].text


# --- 1: what the batch is told ---

FREQUENCY: dict[str, Any] = {"temperature": 0, "frequency_penalty": 1.5}


def copied_outputs() -> str:
    """The metadata holds copies of the outputs, made when the batch came together."""
    build = SamplingMetadata.build.__func__  # type: ignore[attr-defined]

    def copying(cls: Any, rows: Any, vocab_size: int, logitsprocs: Any = None) -> SamplingMetadata:
        copies = [
            SimpleNamespace(
                sampling_params=row.sampling_params,
                prompt_token_ids=row.prompt_token_ids,
                output_token_ids=list(row.output_token_ids),
                generator=row.generator,
            )
            for row in rows
        ]
        made: SamplingMetadata = build(cls, copies, vocab_size, logitsprocs)
        return made

    with patch.object(SamplingMetadata, "build", classmethod(copying)):
        return text(**FREQUENCY)


# --- 2: who is in which row ---


class Only(AdapterLogitsProcessor):
    """Lets a request draw one letter only: `extra_args={"only": "x"}`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        only = (params.extra_args or {}).get("only")
        return None if only is None else self._keep(token(only))

    @staticmethod
    def _keep(kept: int) -> Callable[..., Any]:
        def keep(output_ids: list[int], logits: Any) -> Any:
            barred = np.full_like(logits, -np.inf)
            barred[kept] = logits[kept]
            return barred

        return keep


class Deaf(Only):
    """The same, deaf to rows that move; of rows that are not there any more it lets go."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            batch_update = replace(batch_update, moved=[])
        super().update_state(batch_update)

    def apply(self, logits: Any) -> Any:
        self.req_info = {i: keep for i, keep in self.req_info.items() if i < len(logits)}
        return super().apply(logits)


def three_letters(processor: type[Only]) -> list[str]:
    """Three greedy requests that may write x, y and z only; the first ends after two tokens."""
    llm = LLM(logits_processors=[processor])
    params = [
        SamplingParams(temperature=0, max_tokens=most, extra_args={"only": only}, ignore_eos=True)
        for only, most in (("x", 2), ("y", 6), ("z", 6))
    ]
    return [answer.outputs[0].text for answer in llm.generate([PROMPT] * 3, params)]


def heard(before: str, now: str) -> str:
    """What a processor hears when these people were in the batch and those are now."""
    people = {
        name: SimpleNamespace(sampling_params=name, prompt_token_ids=[], output_token_ids=[])
        for name in {*before.split(), *now.split()}
    }
    update: Any = make_batch_update(
        [people[name] for name in before.split()], [people[name] for name in now.split()]
    )
    if update is None:
        return "None"
    added = [f"{name} to {i}" for i, name, _, _ in update.added]
    moved = [f"{a} to {b} {how.name.lower()}" for a, b, how in update.moved]
    parts = {"removed": update.removed, "added": added, "moved": moved}
    return "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in parts.items() if v)


# --- 3: what can change the likeliest token ---

REPETITION: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.3}


def penalties_behind_the_line() -> str:
    """Penalties come after the greedy rows have left."""
    sample = Sampler.sample

    def late(self: Sampler, logits: Any, sampling_metadata: SamplingMetadata) -> Any:
        tokens, processed = sample(self, logits, sampling_metadata)
        if sampling_metadata.all_greedy:
            return tokens, processed
        penalties = sampling_metadata.penalties
        return sample(
            self, logits if penalties is None else penalties.apply(logits), sampling_metadata
        )

    apply = Sampler.apply_logits_processors

    def without(logits: Any, sampling_metadata: SamplingMetadata) -> Any:
        return apply(logits, replace(sampling_metadata, penalties=None))

    with (
        patch.object(Sampler, "sample", late),
        patch.object(Sampler, "apply_logits_processors", staticmethod(without)),
    ):
        return text(**REPETITION)


# --- 4: what cannot ---


def zero_for_greedy_rows() -> list[str]:
    """Two rows of the guide's logits, at temperatures 1 and 0, divided as they are: what remains of each."""
    logits = np.stack([row(), row()])
    with np.errstate(all="ignore"):
        probs = ops.softmax(ops.apply_temperature(logits, np.array([1, 0], np.float32), True))
    return [f"{np.isnan(line).sum()} of {len(line)} are NaN" for line in probs]


def uncapped_ties(k: int) -> int:
    """How many tokens `top_k` keeps of a row in which all tie."""
    flat = np.zeros((1, 264), np.float32)
    return int(np.isfinite(ops.apply_top_k_top_p(flat, np.array([k]), None)).sum())


# --- 5: the draw ---


def one_stream(beside: Sequence[dict[str, Any]] = ()) -> str:
    """Every row draws from the stream that the whole batch shares, which Gil's seed starts."""
    with patch.object(gpu_input_batch, "make_generator", lambda params: None):
        return text(beside, LLM(seed=7), temperature=1.0)


def not_set_back(chunks: int) -> str:
    """The first letters of seeds 0 to 7, if a prompt in so many chunks uses up numbers for each of them."""
    probs = ops.softmax(row()[None])[0]
    letters = []
    for seed in range(8):
        generator = TorchGenerator(seed)
        for _ in range(chunks - 1):
            generator.standard_exponential(len(probs))
        letters.append(letter(int((probs / generator.standard_exponential(len(probs))).argmax())))
    return " ".join(letters)


# --- 6: what is reported ---


def sums(**asked: Any) -> dict[str, float]:
    """A text's logprobs, added up, in both modes."""
    found = {}
    for mode in ("raw_logprobs", "processed_logprobs"):
        params = SamplingParams(max_tokens=40, logprobs=0, **asked)
        [answer] = LLM(logprobs_mode=mode).generate([PROMPT], params)[0].outputs
        found[mode] = round(float(answer.cumulative_logprob or 0), 1)
    return found


if __name__ == "__main__":
    print("frequency penalty on copies:", copied_outputs())
    print("                     right:", text(**FREQUENCY))
    print("rows that move, heard:     ", three_letters(Only))
    print("rows that move, not heard: ", three_letters(Deaf))
    print("penalties behind the line: ", penalties_behind_the_line())
    print("                     right:", text(**REPETITION))
    print("temperatures 1 and 0:      ", zero_for_greedy_rows())
    print("one stream, alone:         ", one_stream())
    print("one stream, with another:  ", one_stream([{"temperature": 1.0}]))
    print("two chunks, set back:      ", not_set_back(1))
    print("two chunks, not set back:  ", not_set_back(2))
    print("sums of logprobs, top_k 1: ", sums(temperature=1.0, seed=7, top_k=1))
