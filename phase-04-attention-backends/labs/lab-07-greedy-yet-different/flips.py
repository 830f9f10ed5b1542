"""Lab 04-07: how many greedy answers change when they are given all at once, and what changes that.

    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/flips.py
    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/flips.py --replay
    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/flips.py --record

480 prompts, 48 tokens each, in `mini_vllm`: one by one, then all at once. In float32; and with the weights
and what every product, norm and attention returns rounded to bfloat16 or to float16, while sums stay
float32, as GPUs do it. Then the settings that people are told to try, on the prompts whose answers have
changed. `--record` writes flips.json, `--replay` reads it. How many change depends on numpy's BLAS, and
with it on the processor.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module, load_support  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.config.engine import EngineConfig  # noqa: E402
from mini_vllm.engine.llm_engine import LLMEngine  # noqa: E402
from mini_vllm.sampling_params import SamplingParams  # noqa: E402

support = load_support(__file__)
RECORD = HERE / "flips.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
NUM_PROMPTS, NUM_TOKENS = 480, 48
PAGES = [f"phase-0{n}/00-guide.md" for n in ("1-architecture", "2-paged-attention", "3-scheduler")]
FORMS = ("bfloat16", "float16", "float32")
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: what the engine is given, what the sampling is given
    "seed=7": ({}, {"seed": 7}),
    "top_k=1": ({}, {"top_k": 1}),
    "no prefix caching": ({"enable_prefix_caching": False}, {}),
    "max_num_seqs=1": ({"max_num_seqs": 1}, {}),
}
MOST = 4
"""Prompts that the settings are tried on, with as many others beside them."""


def prompts() -> list[str]:
    """Pieces of three guides, 40 to 99 characters each."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    words = re.sub(r" +", " ", re.sub(r"[^A-Za-z0-9 ,.'?]+", " ", text))
    return [words[120 * i : 120 * i + 40 + i % 60] for i in range(NUM_PROMPTS)]


def answers(engine: LLMEngine, texts: list[str], sampling: dict[str, Any]) -> list[list[int]]:
    """Greedy answers to all of `texts` at once, from an empty prefix cache."""
    engine.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, **sampling)
    for i, text in enumerate(texts):
        engine.add_request(str(i), text, params)
    told: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            told[output.request_id] = list(output.outputs[0].token_ids)
    return [told[str(i)] for i in range(len(texts))]


def parts_at(alone: list[int], beside: list[int]) -> int | None:
    """The first place where two answers differ."""
    return next((i for i, (a, b) in enumerate(zip(alone, beside, strict=True)) if a != b), None)


def both(
    form: str, texts: list[str], settings: dict[str, Any], sampling: dict[str, Any]
) -> list[list[list[int]]]:
    """The answers one by one, and all at once."""
    engine = LLMEngine(
        support.rounded(form), EngineConfig(**settings), tokenizer=support.tokenizer()
    )
    alone = [answers(engine, [text], sampling)[0] for text in texts]
    return [alone, answers(engine, texts, sampling)]


def measure() -> dict[str, Any]:
    """Where each answer parts, by format; and the settings, on some that part in 16 bits."""
    found: dict[str, Any] = {"forms": {}, "settings": {}, "examples": []}
    texts = prompts()
    assert all(len(text) >= 40 for text in texts)
    changed: list[tuple[str, str]] = []
    for form in FORMS:
        alone, beside = both(form, texts, {}, {})
        at = [parts_at(a, b) for a, b in zip(alone, beside, strict=True)]
        found["forms"][form] = at
        apart = [i for i, where in enumerate(at) if where is not None]
        changed += [(form, texts[i]) for i in apart]
        found["examples"] += [[form, texts[i], alone[i], beside[i]] for i in apart[:2]]
    some = [(form, text) for form, text in changed if form != "float32"][:MOST]
    for name, (settings, sampling) in SETTINGS.items():
        at = []
        for form, text in some:
            alone, beside = both(form, [text, *texts[:3]], settings, sampling)
            at.append(parts_at(alone[0], beside[0]))
        found["settings"][name] = at
    return found


def show(record: dict[str, Any]) -> None:
    """A line for each format and setting, and some answers that part."""
    print(f"{NUM_PROMPTS} prompts of {NUM_TOKENS} tokens: alone, then all at once")
    for name, at in record["forms"].items():
        apart = [i for i in at if i is not None]
        where = f"first after {min(apart)} to {max(apart)} tokens" if apart else ""
        print(f"  {name:20}{len(apart):4} of {len(at)} differ   {where}".rstrip())
    print("some of those that differ, beside three others")
    for name, at in record["settings"].items():
        print(f"  {name:20}{sum(i is not None for i in at):4} of {len(at)} differ")
    decode = support.tokenizer().decode
    for form, text, alone, beside in record["examples"]:
        print(f"{form}: {text[-30:]!r} goes on")
        print(f"  alone    {decode(alone)!r}")
        print(f"  beside   {decode(beside)!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write flips.json")
    parser.add_argument("--replay", action="store_true", help="read flips.json, compute nothing")
    args = parser.parse_args()
    if args.replay:
        show(json.loads(RECORD.read_text(encoding="utf-8")))
        return
    capture = load_module(HERE / "capture.py", "lab_04_07_capture")
    made = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "hardware": capture.processor(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }
    record = made | measure()
    if args.record:
        RECORD.write_text(json.dumps(record) + "\n", encoding="utf-8")
    show(record)


if __name__ == "__main__":
    run_script(main)
