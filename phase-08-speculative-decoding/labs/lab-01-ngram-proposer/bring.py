"""Given: what your drafts would have saved, on a contract with a name changed and on the model's answer.

    python bring.py [solution | starter]

Tokens are bytes. The contract is what a perfect model would answer; the other text is the shipped model's,
recorded with vLLM.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_08_01_support")

CONTRACT = """\
1. Ada delivers the drawings by 1 March, and the customer pays within 30 days.
2. If Ada is late, the customer pays one hundredth less for each day.
3. Ada keeps the rights in her drawings. The customer may build the house once.
4. Each side may end the contract with a month's notice, in writing.
"""


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_08_01_{which}")
    asked = f"Put Eve in the place of Ada.\n{CONTRACT}\n"
    answer = CONTRACT.replace("Ada", "Eve")
    contract = [*(asked + answer).encode(), *range(200, 208)]  # the last draft may reach beyond
    texts = {"a contract, renamed": (contract, len(asked), len(answer))}
    texts["an answer"] = _recorded("The scheduler")
    print("text                  tokens   k  n-grams  passes  tokens/pass  drafted  accepted")
    for name, (text, num_prompt, max_tokens) in texts.items():
        for k, min_n, max_n in ((3, 5, 5), (8, 5, 5), (3, 1, 5)):
            config = support.make_config(k, min_n, max_n, 4096)
            counts = lab.replay(text, num_prompt, max_tokens, lab.NgramProposer(config))
            drafted, accepted = counts.num_draft_tokens, counts.num_accepted_tokens
            print(
                f"{name:20}{max_tokens:8}{k:4}{f'{min_n} to {max_n}':>9}{counts.num_steps:8}"
                f"{max_tokens / counts.num_steps:13.2f}{drafted:9}{accepted / drafted:10.0%}"
            )


def _recorded(prompt: str) -> tuple[list[int], int, int]:
    run = next(run for run in support.recorded_runs() if run.prompt == prompt)
    return run.text, run.num_prompt_tokens, 60


if __name__ == "__main__":
    main(*sys.argv[1:2])
