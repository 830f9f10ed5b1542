"""Given: your functions beside vLLM's own, on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   500 fresh grammars; real vLLM with and without n-gram speculation
    python in_vllm.py --record               write recorded.json, which the tests read

vLLM schedules synchronously on a CPU. So of its asynchronous loop only the functions run here, on the lab's
scheduler and worker: `EngineCore.step_with_batch_queue` and those that it calls about grammars.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm
from mini_vllm.config.engine import DEFAULT_MODEL

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("HF_HUB_OFFLINE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
vllm_lab = load_module(HERE / "vllm_lab.py", "lab_12_05_vllm_lab")
support, parts = vllm_lab.support, vllm_lab.parts


# ---- random grammars -------------------------------------------------------------------------------


def answer_of_vllm(mode: str, seed: int, jobs: Sequence[Any], backend: Any) -> Any:
    """What a batch gives by vLLM's functions and xgrammar's grammars."""

    def make(job: Any, counter: Any) -> Any:
        return backend.compile(*job.rule, counter) if job.rule else None

    return support.run(mode, vllm_lab.VllmLab(backend.width, 1 + seed % 4), seed, jobs, make)


def differing_batches(lab: Any, first: int, count: int) -> list[str]:
    """Those of so many batches in which tokens, counts, steps or events are not those of vLLM's functions."""
    backend, wrong = vllm_lab.Xgrammar(), []
    for seed, jobs in parts.batches(count, first):
        for mode in ("sync", "async"):
            mine = support.run(mode, lab, seed, jobs)
            theirs = answer_of_vllm(mode, seed, jobs, backend)
            if vars(mine) != vars(theirs):
                wrong.append(f"{mode} {seed}")
    return wrong


def differing_deferrals(lab: Any) -> list[Any]:
    """Steps of one and two requests for which `must_defer` says otherwise than vLLM's scheduler."""
    theirs, wrong = vllm_lab.VllmLab(32, 1), []
    kinds = [
        support.Scheduled("r", bound, chunk, placeholders)
        for bound, chunk, placeholders in product((False, True), (False, True), (0, 1, 5))
        if not (chunk and placeholders)  # a prompt whose end is not reached has sampled nothing
    ]
    for step in [[a] for a in kinds] + [[a, b] for a, b in product(kinds, kinds)]:
        if lab.must_defer(step) != theirs.must_defer(step):
            wrong.append(step)
    return wrong


# ---- real vLLM with n-gram speculation -------------------------------------------------------------

_LIST = "([A-Z]{2}-[0-9]{3,4} ){6}[A-Z]{2}"
ASKED: list[tuple[str, dict[str, Any] | None]] = [
    ("Parts KX-1190 KX-1190 KX-1190 KX-119", {"regex": _LIST}),
    ("Part KX-1190, part ", {"regex": parts.PART_NUMBER}),
    ("repair return question return ", {"choice": ["repair", "return", "question"]}),
    ('{"item": "kettle", "urgent": true}\n', {"json_object": True}),
    ("The scheduler keeps the scheduler", None),
    ("aXbXaXbX", {"regex": "(aX|bX){20}"}),
]
SPECULATION = [(3, 1, 3), (5, 2, 4)]
"""k, and the lengths of the n-gram that is looked up."""
MAX_TOKENS = 48


@contextmanager
def counting(counter: Any) -> Iterator[None]:
    """While this lasts, every grammar that vLLM compiles counts."""
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, XgrammarGrammar

    compile_grammar = XgrammarBackend.compile_grammar
    saved = [
        (XgrammarBackend, "compile_grammar", compile_grammar),
        (XgrammarGrammar, "validate_tokens", XgrammarGrammar.validate_tokens),
        (XgrammarGrammar, "accept_tokens", XgrammarGrammar.accept_tokens),
        (StructuredOutputManager, "grammar_bitmask", StructuredOutputManager.grammar_bitmask),
    ]
    validate_tokens, accept_tokens, grammar_bitmask = (old for _, _, old in saved[1:])

    def compiled(self: Any, *rule: Any) -> Any:
        grammar = compile_grammar(self, *rule)
        grammar.matcher = vllm_lab.CountingMatcher(grammar.matcher, counter)
        return grammar

    def validated(self: Any, tokens: list[int]) -> Any:
        return counter.during("filter", validate_tokens, self, tokens)

    def accepted(self: Any, request_id: str, tokens: list[int]) -> Any:
        if counter.phase == "fill":
            return accept_tokens(self, request_id, tokens)
        return counter.during("accept", accept_tokens, self, request_id, tokens)

    def filled(self: Any, requests: Any, ids: list[str], drafts: Any) -> Any:
        rows = counter.during("fill", grammar_bitmask, self, requests, ids, drafts)
        counter.counts.calls["fill"] += len(ids) - 1  # `fill_rows` is asked for each request
        return rows

    try:
        for (owner, name, _), new in zip(
            saved, (compiled, validated, accepted, filled), strict=True
        ):
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in saved:
            setattr(owner, name, old)


def ask_vllm(
    spec: dict[str, Any] | None,
) -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
    """Real vLLM on the shipped model: prompts and answers as tokens, and what was counted."""
    import vllm
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.utils import torch_utils
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    counter = parts.Counter()
    with counting(counter):
        llm = vllm.LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            block_size=16,
            max_model_len=512,
            distributed_executor_backend=UniProcExecutor,
            speculative_config=spec,
        )
        make_params: Callable[..., Any] = partial(
            vllm.SamplingParams, temperature=0, max_tokens=MAX_TOKENS
        )
        params = [
            make_params(structured_outputs=StructuredOutputsParams(**rule) if rule else None)
            for _, rule in ASKED
        ]
        outputs = llm.generate([prompt for prompt, _ in ASKED], params, use_tqdm=False)
    prompts = [list(output.prompt_token_ids) for output in outputs]
    return prompts, [list(output.outputs[0].token_ids) for output in outputs], counter.counts.flat()


def rule_of(rule: dict[str, Any] | None) -> list[str] | None:
    """A rule as `mini_vllm` compiles it: its kind and its text."""
    if rule is None:
        return None
    [(kind, value)] = rule.items()
    return [kind.upper(), {"choice": json.dumps(value), "json_object": ""}.get(kind, value)]


def record_runs() -> list[dict[str, Any]]:
    """The prompts with each speculation; the answers are those of no speculation."""
    _, plain, _ = ask_vllm(None)
    runs = []
    for k, min_n, max_n in SPECULATION:
        spec = {
            "method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": min_n,
            "prompt_lookup_max": max_n,
        }  # fmt: skip
        prompts, answers, counts = ask_vllm(spec)
        assert answers == plain, "with speculation vLLM gives other tokens than without"
        requests = [
            {"prompt": prompt, "rule": rule_of(rule), "answer": answer}
            for prompt, (_, rule), answer in zip(prompts, ASKED, answers, strict=True)
        ]
        runs.append(
            {"k": k, "min_n": min_n, "max_n": max_n, "max_tokens": MAX_TOKENS, "counts": counts,
             "requests": requests}
        )  # fmt: skip
    return runs


def record_random() -> dict[str, dict[str, int]]:
    """What is counted round xgrammar's grammars in the 1,000 random runs, by vLLM's functions."""
    backend = vllm_lab.Xgrammar()
    totals: dict[str, dict[str, int]] = {"sync": {}, "async": {}}
    for seed, jobs in support.random_batches():
        for mode, total in totals.items():
            answer = answer_of_vllm(mode, seed, jobs, backend)
            assert answer.tokens == [job.answer for job in jobs], (mode, seed)
            support.add(total, answer.counts)
    return totals


def record() -> str:
    """What recorded.json holds."""
    runs = ",\n".join(json.dumps(run, separators=(",", ":")) for run in record_runs())
    random = json.dumps(record_random(), indent=1)
    return f'{{"vllm": "0.22.1",\n"random": {random},\n"runs": [\n{runs}\n]}}\n'


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        support.RECORDED.write_text(record(), "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_12_05_{which}")
    wrong = differing_batches(lab, 1000, 125)
    print(
        f"500 fresh grammars, each synchronous and asynchronous: {len(wrong)} batches differ",
        *wrong[:3],
    )
    wrong = differing_deferrals(lab)
    print(f"must_defer: {len(wrong)} steps differ", *wrong[:3])
    for run in record_runs():
        counts = support.replay(lab, run).counts
        print(
            f"\nreal vLLM, n-gram, k {run['k']}: {'equal' if counts == run['counts'] else 'NOT EQUAL'}"
        )
        for name, count in run["counts"].items():
            print(f"{name:28}{count:6}{counts[name]:6}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
