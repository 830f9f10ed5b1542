"""Eve's card on paper: what a step with drafts takes, and what it brings. Set-up for the pages.

The card and the model are those of phase 00, an A100 and Llama-3-8B in 16 bits. A step takes as long as
reading the weights or computing its rows, whichever is longer. Reading the KV cache is left out.

The pages import this module by its name: start Python in this folder.

    python phase-08-speculative-decoding/drafts.py            what speculation brings, by people
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import LLMEngine

HERE = Path(__file__).resolve().parent


def _load(pattern: str) -> ModuleType:
    """A module of an earlier phase, by its file."""
    [file] = HERE.parent.glob(pattern)
    spec = importlib.util.spec_from_file_location(f"earlier_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for folder in HERE.parent.glob("phase-00-*/labs/lab-04-*")
    for sheet in json.loads((folder / "gpus.json").read_text("utf-8"))
}
FLOPS: float = _SHEETS["A100 80GB SXM"]["printed_tflops"] * 1e12
BANDWIDTH: float = _SHEETS["A100 80GB SXM"]["bandwidth_gb_s"] * 1e9
PARAMS = 8_030_261_248
"""Llama-3-8B's weights, counted in phase 00."""
LM_HEAD = 128_256 * 4096
LAYER = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
HEAD = LAYER + 2 * 4096 * 4096 + LM_HEAD
"""What a pass of an EAGLE head for it reads: one layer, the matrix before it, and the model's LM head."""
ACCEPTANCE: dict[str, Any] = json.loads(
    (HERE.parent / "scripts" / "tiny_llama_drafters" / "acceptance.json").read_text("utf-8")
)
"""What real vLLM accepts of the course's own drafters, for the tiny Llama on prompts that it has not seen."""
_EAGLE = ACCEPTANCE["methods"]["eagle"]
HEAD_RATES = tuple(
    accepted / _EAGLE["num_drafts"] for accepted in _EAGLE["num_accepted_tokens_per_pos"]
)
"""By position, how often the EAGLE head's drafts are accepted."""


# --- the bill ---


def pass_ms(rows: float, weights: float = PARAMS) -> float:
    """Milliseconds of a forward pass: reading its weights or computing its rows, whichever is longer."""
    return 1e3 * max(2 * weights / BANDWIDTH, rows * 2 * weights / FLOPS)


@dataclass(frozen=True)
class Drafting:
    """What drafts bring and cost a person, on average over the steps.

    Attributes:
        tokens: that a step brings: one of the model's own, and the accepted drafts.
        rows: that a step computes.
        weights: that a pass of the drafter reads; 0: no model drafts.
        passes: of the drafter, one after the other.
    """

    tokens: float
    rows: float
    weights: float = 0
    passes: int = 0

    def step_ms(self, people: float) -> float:
        """A step in which everybody's drafts are checked, and then new ones made."""
        drafting = self.passes * pass_ms(people, self.weights) if self.passes else 0.0
        return pass_ms(people * self.rows) + drafting

    def gain(self, people: float) -> float:
        """How many times as fast each person's text comes as without drafts."""
        return self.tokens * pass_ms(people) / self.step_ms(people)

    def breaks_even(self) -> int:
        """The smallest number of people with whom drafts gain nothing."""
        return next(people for people in range(1, 10_000) if self.gain(people) <= 1)


def serial(rates: Sequence[float], weights: float = HEAD) -> Drafting:
    """A drafter that always makes as many drafts as there are rates, one after the other.

    Args:
        rates: for each position, the share of drafts in which it is accepted, and so all before it.
    """
    return Drafting(1 + sum(rates), 1 + len(rates), weights, len(rates))


def bill(*crowds: int, drafting: Drafting) -> None:
    """A step of so many people without drafts and with them, and tokens per second for each person."""
    print("         without drafts         with drafts")
    print("people   rows   ms  tokens/s    rows    ms  tokens/s   gain")
    for people in crowds:
        plain, drafted = pass_ms(people), drafting.step_ms(people)
        print(
            f"{people:6}   {people:4} {plain:4.1f} {1e3 / plain:9.0f}"
            f"   {people * drafting.rows:5.0f}  {drafted:4.1f} {1e3 * drafting.tokens / drafted:9.0f}"
            f"  {drafting.gain(people):5.2f}"
        )


WITH_HEAD = serial(HEAD_RATES)
"""A head for Eve's model, if it guesses as well as the course's own does for the tiny Llama."""
WITH_POOR_HEAD = serial((0.2, 0.2**2, 0.2**3))
"""The same head, if its guesses are right one time in five."""


def mixtral_ms(tokens: int) -> float:
    """A step on Ilse's card (phase 07): Mixtral-8x7B on an H200."""
    return float(_load("phase-07-*/bill.py").step_ms(tokens))


# --- one step, checked by hand ---

TEXT = (
    "The KV cache stores the keys and values of all tokens read so far. With it, a decode step has to "
    "compute only one new token per request. Without it, every step would read the whole seq"
)
"""What the shipped Llama writes after "The KV cache", up to step 149 of the run with n-gram lookup."""


@dataclass(frozen=True)
class Row:
    """A row of a step with drafts.

    Attributes:
        number: its position in the text.
        token: what goes in.
        says: the likeliest token after it.
        drafted: what the drafter says instead; empty in the last row.
        verdict: what becomes of `says`; empty where a draft before it was wrong.
    """

    number: int
    token: str
    says: str
    drafted: str
    verdict: str


def rows_of(draft: str, text: str = TEXT) -> list[Row]:
    """One forward pass of the shipped Llama over text and draft: the last token's row, and the draft's."""
    engine = LLMEngine()
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(text + draft)
    hidden, _ = _load("phase-00-*/napkin.py").run(ids, engine)
    said = engine.model.compute_logits(hidden).argmax(axis=-1)
    rows, fits = [], True
    for number, drafted in zip(
        range(len(ids) - len(draft) - 1, len(ids)), [*draft, ""], strict=True
    ):
        says = tokenizer.decode([int(said[number])])
        right = "accepted" if says == drafted else "own token" if drafted else "bonus"
        rows.append(
            Row(number, tokenizer.decode([ids[number]]), says, drafted, right if fits else "")
        )
        fits = fits and says == drafted
    return rows


def check(draft: str) -> None:
    """Print the rows of a step that checks a draft."""
    print("row   in    model   draft")
    for row in rows_of(draft):
        drafted = repr(row.drafted) if row.drafted else ""
        print(
            f"{row.number}   {row.token!r}   {row.says!r:5}   {drafted:5}   {row.verdict}".rstrip()
        )


# --- the two rules, worked out ---

Shares = NDArray[np.float64]


def certain_rule(p: Shares, draft: int) -> tuple[float, Shares]:
    """The draft counts as certain: how often it is accepted, and what is drawn if it is not."""
    rest = p.copy()
    rest[draft] = 0
    return float(p[draft]), rest / rest.sum()


def ratio_rule(p: Shares, q: Shares) -> tuple[float, Shares]:
    """The draft is drawn from q: how often it is accepted, and what is drawn if it is not."""
    rest = np.maximum(p - q, 0)
    return float(np.minimum(p, q).sum()), rest / rest.sum()


if __name__ == "__main__":
    bill(1, 16, 64, 128, 256, drafting=WITH_HEAD)
