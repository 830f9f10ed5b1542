"""Lab 01-02, the log: what vLLM says of itself and of each iteration.

What it said lies in capture/, written by capture.py.
"""

from __future__ import annotations

import json
import re
from types import ModuleType

from course.learner.labs import load_support

support = load_support(__file__)


def test_startup_of_the_capture(lab: ModuleType) -> None:
    """Six facts from vLLM's own start-up lines."""
    support.same(
        tuple(lab.parse_startup(support.engines.read_log("in_process"))),
        ("0.22.1", 32, False, 144, 96, 1.5),
        "9 blocks of 16 are 144 tokens; a request of 96 takes 6 of them, so 1.50 of those.",
    )


def test_the_last_word_counts(lab: ModuleType) -> None:
    """A CPU log says "enabled" and later "disabled"; the engine core goes by the second."""
    log = support.engines.read_log("busy_loop")
    support.same(
        re.findall(r"Asynchronous scheduling is (\w+)", log),
        ["enabled", "disabled"],
        "The capture should have both lines; record it again.",
    )
    got = lab.parse_startup(log).async_scheduling
    assert got is False, (
        f"async_scheduling should be False, got {got!r}. The front end resolves the default first and "
        "says enabled; then the CPU platform turns it off. The last line is what runs."
    )
    assert lab.parse_startup(log.replace("is disabled.", "is enabled.")).async_scheduling is True, (
        "where every line says enabled, it is"
    )


def test_thousands_have_commas(lab: ModuleType) -> None:
    """The lines of larger pools, as vLLM printed them for lab 00-02."""
    record = json.loads(
        (support.HERE.parents[2] / "phase-00-foundations/labs/lab-02-kv-memory-calculator/vllm_startup.json")
        .read_text("utf-8")
    )  # fmt: skip
    log = support.engines.read_log("in_process")
    wanted = ((524_288, 1024, 512.0), (48_428, 1000, 48.43))
    for start, want in zip(record["starts"], wanted, strict=False):
        size, concurrency = start["log"]
        text = log.replace("GPU KV cache size: 144 tokens", size)
        text = text.replace("Maximum concurrency for 96 tokens per request: 1.50x", concurrency)
        got = lab.parse_startup(text)
        support.same(
            (got.num_kv_cache_tokens, got.max_model_len, got.max_concurrency),
            want,
            f"read from {size!r} and {concurrency!r}: numbers of four digits and more have commas.",
        )


def test_a_missing_line_is_named(lab: ModuleType) -> None:
    """A log that was cut off gets a ValueError that names the field."""
    log = support.engines.read_log("in_process")
    for field, cut in (
        ("version", "Initializing a V1"),
        ("max_num_batched_tokens", "Chunked prefill is"),
        ("async_scheduling", "Asynchronous"),
        ("num_kv_cache_tokens", "GPU KV"),
        ("max_model_len|max_concurrency", "Maximum concurrency"),
    ):
        text = "\n".join(line for line in log.splitlines() if cut not in line)
        said = None
        try:
            lab.parse_startup(text)
        except ValueError as error:
            said = str(error)
        assert said is not None, f"a log without the line of {field} must raise ValueError"
        assert re.search(field, said), (
            f"the log lacks the line of {field}, and the error does not name it: {said}"
        )


def test_iterations_of_the_capture(lab: ModuleType) -> None:
    """22 lines among all the others, counted from 0; the worker saw as many tokens."""
    log = support.engines.read_log("in_process")
    got = lab.parse_iterations(log)
    support.same(
        [i[0] for i in got], list(range(22)), "One line a step, the first is Iteration(0)."
    )
    support.same(tuple(got[0]), (0, 2, 32, 0, 0), "Two prompts begin in the first step.")
    support.same(tuple(got[3]), (3, 1, 22, 2, 2), "One prompt beside two that decode.")
    ran = [int(n) for n in re.findall(r"Running batch .*?num_tokens=(\d+)", log)]
    support.same(
        [i.context_tokens + i.generation_tokens for i in got],
        ran,
        "Context and generation tokens together are the batch that the worker says it ran.",
    )
