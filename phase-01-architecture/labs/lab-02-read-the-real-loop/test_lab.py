"""Lab 01-02: the environment, and reading the log. What vLLM said lies in capture/."""

from __future__ import annotations

import re
from types import ModuleType

from course.learner.labs import load_support

support = load_support(__file__)


def test_environment(lab: ModuleType) -> None:
    """The variables keep the core in this process, and make the log say all it can."""
    got = lab.environment()
    core = got.get("VLLM_ENABLE_V1_MULTIPROCESSING")
    assert core == "0", (
        f"VLLM_ENABLE_V1_MULTIPROCESSING should be '0', got {core!r}. By default the engine core, and its "
        "scheduler with it, lives in another process. '0' keeps it here, where it can be wrapped; "
        "values are strings"
    )
    level = got.get("VLLM_LOGGING_LEVEL")
    assert str(level).upper() == "DEBUG", (  # in any case, as vLLM takes it
        f"VLLM_LOGGING_LEVEL should be 'DEBUG', got {level!r}: at that level the worker says what it runs. "
        "(What is scheduled, no level shows; values are strings.)"
    )


def test_iterations_of_the_capture(lab: ModuleType) -> None:
    """The capture's 22 iteration lines are read, counted from 0; the worker saw as many tokens."""
    log = support.engines.read_log("in_process")
    got = lab.parse_iterations(log)
    assert isinstance(got, list), f"return a list of Iteration, got {type(got).__name__}"
    numbers = [line[0] for line in got]
    assert all(type(n) is int for n in numbers), f"the five fields are ints, got {numbers[0]!r}"
    assert numbers == list(range(22)), (
        f"the log has the lines Iteration(0) to Iteration(21), one a step; you found {len(numbers)}: "
        f"{numbers[:5]} ..."
    )
    support.same_lines(
        [got[0], got[3], got[19]],
        [(0, 2, 32, 0, 0), (3, 1, 22, 2, 2), (19, 0, 0, 2, 18)],
        "(Of the capture, lines 0, 3 and 19.) An Iteration has the numbers in the order of the line, as int.",
    )
    assert all(hasattr(line, "context_tokens") for line in got), (
        f"return Iteration objects, not {type(got[0]).__name__}s"
    )
    ran = [int(n) for n in re.findall(r"Running batch .*?num_tokens=(\d+)", log)]
    mine = [line.context_tokens + line.generation_tokens for line in got]
    assert mine == ran, (
        "context and generation tokens together are the batch that the worker says it ran; they differ "
        f"in line {next(i for i, pair in enumerate(zip(mine, ran, strict=False)) if pair[0] != pair[1])}"
    )


def test_only_iteration_lines_are_read(lab: ModuleType) -> None:
    """Iteration lines are read after any prefix and with any numbers; no other line is read."""
    line = (
        "(EngineCore pid=7) INFO 01-01 00:00:00 [v1/engine/core.py:407] Iteration(1203): "
        "12 context requests, 16384 context tokens, 240 generation requests, 251 generation tokens, "
        "iteration elapsed time: 9.00 ms"
    )
    other = (
        "INFO [core.py:1] 3 context requests, 22 context tokens in the last 10 iterations\n"
        "INFO [core.py:2] Iteration(7) took 12 ms for 3 of 4 requests, 5 tokens\n"
        "INFO [core.py:3] Iteration 8: 1 2 3 4\n"
    )
    support.same_lines(
        lab.parse_iterations(other),
        [],
        "These only look alike: 'Iteration(7) took 12 ms ...' and 'Iteration 8: 1 2 3 4' name no groups.",
    )
    support.same_lines(
        lab.parse_iterations(other + line + "\n" + other),
        [(1203, 12, 16384, 240, 251)],
        "The line may have the process in front of it, and numbers of any length. Match Iteration(...) and "
        "what follows, wherever it stands in the line.",
    )
    start = (
        "INFO [core.py:407] Iteration(0): 1 context requests, {} context tokens, 0 generation requests, "
        "0 generation tokens, iteration elapsed time: 8.00 ms\n"
        "INFO [core.py:407] Iteration(1): 0 context requests, 0 context tokens, 1 generation requests, "
        "1 generation tokens, iteration elapsed time: 3.00 ms\n"
    )
    support.same_lines(
        lab.parse_iterations(start.format(13) + start.format(64)),
        [(0, 1, 13, 0, 0), (1, 0, 0, 1, 1), (0, 1, 64, 0, 0), (1, 0, 0, 1, 1)],
        "The server was started twice, and each start counts from 0. Keep every line, in the log's order: "
        "neither sort by number nor drop one that came before.",
    )
    busy = lab.parse_iterations(support.engines.read_log("busy_loop"))
    support.same_lines(
        busy[3:],
        [(3, 0, 0, 1, 1), (4, 0, 0, 0, 0)],
        "With the core in its own process, after four steps for four tokens comes an iteration with nothing "
        "in it.",
    )
