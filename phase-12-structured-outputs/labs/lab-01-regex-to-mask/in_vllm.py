"""Given: a rule's rows by xgrammar, as vLLM has them. Needs vLLM 0.22.1; `course grade` does not.

python in_vllm.py [solution | starter] [RULE ...]   your rows beside xgrammar's, along random walks
python in_vllm.py --record                          write recorded.json, which the tests read
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_01_support")

BY_BYTES = [
    support.PART, support.KIND, support.SHELF, "(é|è)+", "[é-ü]€?", ".{2}x", "(a|ab)(c|bcd)*", "<[a-z]+>|no",
    r"-?\d+(\.\d{2})?", "[^a-z]{1,3}", "((ab?)*c){2}", "(a*b)*",
]  # fmt: skip
"""Rules over the tiny Llama's tokens."""
RUNS = [support.PART, support.KIND, support.SHELF, "(é|è)+", "[^a-z]+"]
"""Rules for the whole of real vLLM."""
WALKS, STEPS = 12, 8


class Xgrammar:
    """xgrammar over one vocabulary."""

    def __init__(self, vocabulary: Any) -> None:
        import xgrammar

        self.vocabulary = vocabulary
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens), xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size, stop_token_ids=[vocabulary.stop],
        )  # fmt: skip
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._row = xgrammar.allocate_token_bitmask(1, vocabulary.vocab_size)

    def start(self, rule: str) -> Any:
        """A matcher for a regex in its first state."""
        import xgrammar

        return xgrammar.GrammarMatcher(self._compiler.compile_regex(rule))

    def row(self, matcher: Any) -> Any:
        """The row of the matcher's state. Bits beyond the vocabulary stand for nothing, and are cleared."""
        self._row.fill_(-1)
        matcher.fill_next_token_bitmask(self._row, 0)
        bits = np.unpackbits(self._row[0].numpy().view(np.uint8), bitorder="little")
        bits[self.vocabulary.vocab_size :] = 0
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def walk(theirs: Xgrammar, rule: str, rng: random.Random, steps: int = STEPS) -> Any:
    """A `support.Walk` along tokens that xgrammar allows. None if it allows one that it then refuses."""
    matcher = theirs.start(rule)
    tokens: list[int] = []
    rows = [theirs.row(matcher)]
    for _ in range(steps):
        onward = [i for i in support.allowed(rows[-1]) if i != theirs.vocabulary.stop]
        if not onward:
            break
        token = rng.choice(onward)
        if not matcher.accept_token(token):
            return None
        tokens.append(token)
        rows.append(theirs.row(matcher))
    return support.Walk(
        rule, theirs.vocabulary, tuple(tokens), tuple(tuple(row.tolist()) for row in rows)
    )


def record_walks(group: str, rules: list[str], walks: int) -> dict[str, Any]:
    """Of each rule some walks, with each different row once."""
    theirs = Xgrammar(support.vocabulary_of(group))
    rows: dict[tuple[int, ...], int] = {}
    found = []
    for rule in rules:
        for number in range(walks):
            one = walk(theirs, rule, random.Random(f"{rule} {number}"))
            if one is not None:
                which = [rows.setdefault(row, len(rows)) for row in one.rows]
                found.append([rule, list(one.tokens), which])
    hexes = [np.array(row, "<i4").tobytes().hex() for row in rows]
    return {"rows": hexes, "walks": found}


def random_rules(seed: int, wanted: int) -> list[str]:
    """Rules of which none is short or huge."""
    rng = random.Random(seed)
    rules: list[str] = []
    while len(rules) < wanted:
        rule = support.random_rule(rng)
        if 6 < len(rule) < 40 and rule not in rules:
            rules.append(rule)
    return rules


def record_all_walks() -> dict[str, Any]:
    """By group."""
    return {
        "bytes": record_walks("bytes", BY_BYTES, 3),
        "several characters": record_walks("several characters", random_rules(1, 40), 1),
        "cut characters": record_walks("cut characters", random_rules(2, 40), 1),
    }


def run_vllm() -> dict[str, list[int]]:
    """By rule what the tiny Llama says in real vLLM, greedily."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.utils import torch_utils
    from vllm.v1.executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    llm = LLM(
        model=str(support.DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_model_len=256,
        distributed_executor_backend=UniProcExecutor,
    )
    bound = [
        SamplingParams(
            temperature=0,
            max_tokens=support.MAX_TOKENS,
            structured_outputs=StructuredOutputsParams(regex=rule),
        )
        for rule in RUNS
    ]
    prompts = [{"prompt_token_ids": support.prompt_ids()}] * len(RUNS)
    outputs = llm.generate(prompts, bound, use_tqdm=False)
    return {rule: list(o.outputs[0].token_ids) for rule, o in zip(RUNS, outputs, strict=True)}


def compare(lab: Any, rules: list[str]) -> None:
    """Your rows beside xgrammar's: over bytes, and over tokens of several characters."""
    for rule in rules:
        for group in ("bytes", "several characters"):
            theirs = Xgrammar(support.vocabulary_of(group))
            walks = [walk(theirs, rule, random.Random(number)) for number in range(WALKS)]
            walks = [one for one in walks if one is not None]
            apart = [said for one in walks if (said := support.first_difference(lab, one))]
            rows = sum(len(one.rows) for one in walks)
            print(f"{rule:28} {group:18} {rows:4} rows  {apart[0] if apart else 'equal'}")


def main(args: list[str]) -> None:
    need_vllm()
    if args == ["--record"]:
        recorded = {"vllm": "0.22.1", "runs": run_vllm(), "walks": record_all_walks()}
        text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
        support.RECORDED.write_text(
            text.replace('"],"', '"],\n"').replace("]],", "]],\n") + "\n", "utf-8"
        )
        return
    which, *rules = args or ["starter"]
    lab = load_module(HERE / f"{which}.py", f"lab_12_01_{which}")
    compare(lab, rules or BY_BYTES)


if __name__ == "__main__":
    main(sys.argv[1:])
