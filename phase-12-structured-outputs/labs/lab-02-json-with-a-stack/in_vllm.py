"""Given: rows of the same language by xgrammar, as vLLM has them. Needs vLLM 0.22.1; `course grade` does not.

python in_vllm.py [solution | starter]   your rows beside xgrammar's, along fresh random walks
python in_vllm.py --record               write recorded.json, which the tests read
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
support = load_module(HERE / "support.py", "lab_12_02_support")
GROUPS = {"bytes": 12, "several characters": 40}
"""How many walks are recorded over each vocabulary."""


class Xgrammar:
    """The lab's language, compiled by xgrammar over one vocabulary."""

    def __init__(self, vocabulary: Any) -> None:
        import xgrammar

        self.vocabulary = vocabulary
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens), xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size, stop_token_ids=[vocabulary.stop],
        )  # fmt: skip
        self._compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(support.EBNF)
        self._row = xgrammar.allocate_token_bitmask(1, vocabulary.vocab_size)

    def start(self) -> Any:
        """vLLM's own grammar object, in its first state."""
        import xgrammar
        from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

        matcher = xgrammar.GrammarMatcher(self._compiled)
        return XgrammarGrammar(self.vocabulary.vocab_size, matcher, self._compiled)

    def row(self, grammar: Any) -> Any:
        """The row of the present state. Bits beyond the vocabulary stand for nothing, and are cleared."""
        self._row.fill_(-1)
        grammar.fill_bitmask(self._row, 0)
        bits = np.unpackbits(self._row[0].numpy().view(np.uint8), bitorder="little")
        bits[self.vocabulary.vocab_size :] = 0
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def choose(vocabulary: Any, ids: list[int], rng: random.Random) -> int:
    """One of the tokens, more often than not one with a bracket, or one that ends a string."""
    telling = [i for i in ids if set(vocabulary.tokens[i]) & set(b'{}[]"')]
    return rng.choice(telling if telling and rng.random() < 0.7 else ids)


def walk(theirs: Xgrammar, rng: random.Random, steps: int) -> Any:
    """A `support.Walk` along tokens that xgrammar allows; the end token, if it comes, is the last."""
    grammar = theirs.start()
    tokens: list[int] = []
    rows = [theirs.row(grammar)]
    while len(tokens) < steps:
        onward = [i for i in support.allowed(rows[-1]) if i != theirs.vocabulary.stop]
        if not onward:
            break
        token = choose(theirs.vocabulary, onward, rng)
        assert grammar.accept_tokens("bo", [token])
        tokens.append(token)
        rows.append(theirs.row(grammar))
    return support.Walk(theirs.vocabulary, tuple(tokens), tuple(tuple(r.tolist()) for r in rows))


def record_walks(group: str) -> dict[str, Any]:
    """Walks over a vocabulary, with each different row once."""
    theirs = Xgrammar(support.vocabulary_of(group))
    rows: dict[tuple[int, ...], int] = {}
    walks = []
    for number in range(GROUPS[group]):
        one = walk(theirs, random.Random(f"{group} {number}"), 24)
        walks.append([list(one.tokens), [rows.setdefault(row, len(rows)) for row in one.rows]])
    return {"rows": [np.array(row, "<i4").tobytes().hex() for row in rows], "walks": walks}


def run_vllm() -> dict[str, list[int]]:
    """What the tiny Llama says in real vLLM, bound by the grammar, for each of support.RUNS."""
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
    rule = StructuredOutputsParams(grammar=support.EBNF)
    params = [SamplingParams(**support.sampling(r), structured_outputs=rule) for r in support.RUNS]
    prompts = [{"prompt_token_ids": support.prompt_ids()}] * len(params)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return {r: list(o.outputs[0].token_ids) for r, o in zip(support.RUNS, outputs, strict=True)}


def compare(lab: Any, walks: int = 30) -> None:
    """Your rows beside xgrammar's: over bytes, and over tokens of several characters."""
    for group in GROUPS:
        theirs = Xgrammar(support.vocabulary_of(group))
        mask = support.make_mask(lab, theirs.vocabulary)
        drawn = [walk(theirs, random.Random(number), 30) for number in range(walks)]
        apart = [
            said
            for one in drawn
            if (said := support.first_difference(lab, mask, one, random.Random(1)))
        ]
        rows = sum(len(one.rows) for one in drawn)
        print(f"{group:18} {rows:4} rows  {apart[0] if apart else 'equal'}")


def main(args: list[str]) -> None:
    need_vllm()
    if args == ["--record"]:
        walks = {group: record_walks(group) for group in GROUPS}
        text = json.dumps(
            {"vllm": "0.22.1", "runs": run_vllm(), "walks": walks}, separators=(",", ":")
        )
        support.RECORDED.write_text(
            text.replace('"],"', '"],\n"').replace("]],", "]],\n") + "\n", "utf-8"
        )
        return
    (which,) = args or ["starter"]
    compare(load_module(HERE / f"{which}.py", f"lab_12_02_{which}"))


if __name__ == "__main__":
    main(sys.argv[1:])
