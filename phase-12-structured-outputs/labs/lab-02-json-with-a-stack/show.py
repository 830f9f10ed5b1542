"""Given: what your rows ask the stack, and the tiny Llama's JSON.

    python show.py [solution | starter]

The tiny Llama knows no JSON and rarely opens a bracket. In two of three runs some characters are made
likelier, as `RUNS` of support.py says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_02_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_02_{which}")
    vocabulary = support.pieces()
    mask = support.make_mask(lab, vocabulary)
    print(f"of {len(vocabulary.tokens)} tokens       always  ask  for instance")
    asked = 0
    for mode, innermost in support.PAIRS:
        always, ask = mask.split(mode, innermost)
        asked += len(ask)
        if innermost and mode in ("first", "digits", "string", "colon"):
            some = vocabulary.show(ask[:3], 3)
            print(f"{mode:7} inside {innermost}  {len(always):8} {len(ask):4}  {some}".rstrip())
    places = len(support.PAIRS)
    share = asked / places / len(vocabulary.tokens)
    print(
        f"all {places} places: {asked / places:.1f} tokens a row ask the stack, {100 * share:.1f} %"
    )

    print("\nthe tiny Llama  tokens  json.loads")
    tiny = support.make_mask(lab, support.tiny())
    for name in support.RUNS:
        answer = support.generate(lab.JsonGrammar(tiny), support.sampling(name))
        ended = answer.tokens[-1] == support.tiny().stop
        verdict = "ended, reads it" if ended else "cut off"
        print(f"{name:14}  {len(answer.tokens):6}  {verdict:15}  {answer.text}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
