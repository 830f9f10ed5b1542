"""Given: what beams cost, and when more of them end worse.

python show.py [solution | starter]
"""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_04_support")
PROMPT = 2
WIDTHS = (1, 2, 3, 4)


def show_costs(lab: Any) -> None:
    prompt = support.recorded()["prompts"][PROMPT]
    print(f"a prompt of {len(prompt)} tokens, 10 more:")
    print("width  requests  tokens asked for  computed  best sum")
    for width in WIDTHS:
        llm = support.make_llm()
        steps = support.count_tokens(llm)
        ask = functools.partial(lab.ask_engine, llm)
        best = lab.beam_search(ask, prompt, width, 10, support.EOS, ignore_eos=True)[0]
        requests = list(itertools.chain(*steps))
        total, computed = (sum(numbers) for numbers in zip(*requests, strict=True))
        print(
            f"{width:>5}  {len(requests):>8}  {total:>16}  {computed:>8}  {best.cum_logprob:>8.3f}"
        )


def show_worse(lab: Any, num_models: int = 1000, max_tokens: int = 8) -> None:
    print(f"\n{num_models:,} random models of 4 tokens, {max_tokens} steps:")
    pairs = [(1, 2), (2, 3), (3, 4)]
    better, worse = dict.fromkeys(pairs, 0), dict.fromkeys(pairs, 0)
    for number in range(num_models):
        ask = support.random_model(number)
        best = {w: lab.beam_search(ask, [0], w, max_tokens, -1)[0].cum_logprob for w in WIDTHS}
        for narrow, wide in pairs:
            better[narrow, wide] += best[wide] > best[narrow]
            worse[narrow, wide] += best[wide] < best[narrow]
    for narrow, wide in pairs:
        print(
            f"width {wide} instead of {narrow}: better in {better[narrow, wide]}, "
            f"worse in {worse[narrow, wide]}"
        )


def show_candidates(lab: Any, num_models: int = 300) -> None:
    print(
        f"\n{num_models} random models of 9 tokens, one of them EOS; width 3, 5 steps, penalty 0:"
    )
    search = functools.partial(
        lab.beam_search, beam_width=3, max_tokens=5, eos=support.EOS, length_penalty=0.0
    )
    as_vllm = lab.num_candidates
    for name, number in (("width", 3), ("width + 1", 4)):
        other_beams = other_answers = 0
        for model in range(num_models):
            asks = [support.random_model(model, (support.EOS, *range(10, 18))) for _ in range(2)]
            answers = search(asks[0], [0])
            lab.num_candidates = lambda width, number=number: number
            other_answers += search(asks[1], [0]) != answers
            lab.num_candidates = as_vllm
            other_beams += asks[1].steps != asks[0].steps
        print(
            f"{name} candidates per beam, not 2 * width: other beams in {other_beams}, "
            f"other answers in {other_answers}"
        )


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_09_04_{which}")
    show_costs(lab)
    show_worse(lab)
    show_candidates(lab)


if __name__ == "__main__":
    main(*sys.argv[1:2])
