"""Given: where recorded.json comes from. `python record.py` writes it anew, on your processor.

Eight tickets, each two runs of `mini_vllm` and every run that `prove` asks for. Half of the tickets are of a
model rounded to bfloat16, as lab 04-07 does it; the prompts are ones at which a search through pieces of the
course's pages saw answers part. Which prompts do depends on numpy's BLAS, and with it on the processor: the
script stops at a ticket whose answers are the same on yours.
"""

from __future__ import annotations

import datetime
import json
import platform
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_06_support")
lab = load_module(HERE / "solution.py", "lab_09_06_solution")
rounding = load_module(
    HERE.parents[2] / "phase-04-attention-backends/labs/lab-07-greedy-yet-different/support.py",
    "lab_09_06_rounding",
)

GREEDY3 = ("greedy",) * 3
TOP_1 = {"temperature": 4.0, "top_k": 1}
HOT = {"temperature": 4.0, "seed": 7}
TICKETS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    # name: the prompt, its answer's tokens, the situations of both runs
    "A": (" blob v0.22.1 vllm v1 core block pool.py L402 vllm v1 core block pool.py", 16,
          {"seed": 7}, {"warm": True}),
    "B": ("he A100 of phase 00, in 16 bits python MIB,", 8,
          TOP_1 | {"seed": 7}, TOP_1 | {"seed": 8, "token_budget": 32}),
    "C": ("d hashes their blocks, and an output threa", 16,
          {"cpu_path": True, "seed": 7}, {"cpu_path": True, "seed": 7, "neighbours": GREEDY3, "warm": True}),
    "D": ("s when the step is scheduled . Then come execute and sample, which", 15,
          {}, {"token_budget": 32, "neighbours": GREEDY3}),
    "E": ("", 12, HOT, {"temperature": 4.0, "warm": True}),
    "F": ("", 12, HOT | {"cpu_path": True, "neighbours": (3,)},
          HOT | {"cpu_path": True, "neighbours": (None,)}),
    "G": ("", 12, HOT, HOT | {"top_k": 40, "token_budget": 32}),
    "H": ("", 12, HOT | {"neighbours": (3,)}, HOT | {"cpu_path": True, "neighbours": ("greedy",)}),
}  # fmt: skip


def asked(a: Any, b: Any) -> list[Any]:
    """Both situations, and all in which one setting of either is the other's."""
    found = [a, b]
    for name in (one.name for one in fields(lab.Situation)):
        found += [replace(a, **{name: getattr(b, name)}), replace(b, **{name: getattr(a, name)})]
    return list(dict.fromkeys(found))


def main() -> None:
    tokenizer = Tokenizer.from_folder(str(DEFAULT_MODEL))
    tickets = {}
    for name, (text, num_tokens, *settings) in TICKETS.items():
        model = rounding.rounded("bfloat16") if text else None
        prompt = tuple(tokenizer.encode(text)) if text else tuple(support.prompt_of(0))
        a, b = (lab.Situation(prompt=prompt, **one) for one in settings)
        runs = [support.play(lab, one, model, num_tokens) for one in asked(a, b)]
        assert lab.parts_at(*runs[:2]) is not None, f"{name}: the answers are the same here"
        tickets[name] = {"prompt": prompt, "runs": [support.as_json(run) for run in runs]}
        print(name, sorted(lab.suspects(*runs[:2])))
    made = {
        "command": "python phase-09-sampling/labs/lab-06-same-prompt-two-answers/record.py",
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "tickets": tickets,
    }
    text = json.dumps(made, separators=(",", ":"))
    support.RECORDED.write_text(
        text.replace('{"situation"', '\n{"situation"') + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
