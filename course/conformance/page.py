"""`docs/CONFORMANCE.md`: the table by feature, from `expected.tsv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from course.conformance.table import DIFFERS, LACKS, OUTSIDE, PASSES
from course.conformance.upstream_tests import LEFT_OUT

PAGE = Path(__file__).parents[2] / "docs" / "CONFORMANCE.md"
# What a test file is about; a file that is not listed goes by its own name.
AREAS = {
    "core/test_scheduler.py": "scheduler",
    "core/test_scheduler_e2e.py": "the engine from end to end",
    "core/test_reset_prefix_cache_e2e.py": "the engine from end to end",
    "sample/test_sampling_params_e2e.py": "the engine from end to end",
    "core/test_priority_scheduler_random.py": "scheduler",
    "core/test_async_scheduler.py": "asynchronous scheduler",
    "core/test_prefix_caching.py": "prefix cache",
    "core/test_kv_cache_utils.py": "blocks, their hashes and sizes",
    "core/test_single_type_kv_cache_manager.py": "managers of one kind of attention",
    "core/test_repetition_detection.py": "stopping at repetition",
    "core/test_output.py": "requests and messages",
    "test_request.py": "requests and messages",
    "cudagraph/test_cudagraph_dispatch.py": "CUDA graph dispatch",
    "engine/test_output_processor.py": "output processor",
    "engine/test_parallel_sampling.py": "several samples per prompt",
    "metrics/test_stats.py": "statistics",
    "e2e/general/test_min_tokens.py": "a least number of tokens",
    "engine/test_logprobs_processor.py": "logprobs",
    "sample/test_logprobs.py": "logprobs",
    "samplers/test_logprobs.py": "logprobs",
    "sample/test_sampler.py": "sampler",
    "structured_output/test_backend_guidance.py": "structured outputs",
    "structured_output/test_utils.py": "structured outputs",
}
_TEXT = """\
# vLLM's own tests on mini_vllm

<!-- Written by `python -m course.conformance --write`. -->

vLLM 0.22.1 comes with unit tests, written by its own authors. `python -m course.conformance` runs {files}
files of them twice: on vLLM, and with its classes exchanged for `mini_vllm`'s behind an adapter that
translates names and decides nothing. vLLM passes {total} tests on a CPU. Of these {entered} enter the
engine: **{passes} pass**, {lacks} ask for a feature that it lacks, and {differs}. The other {outside} test
parts of vLLM that are not in here.

## By what is tested

{areas}

## By what is missing

{features}

A test counts as lacking a feature if it asks for it anywhere, even if it would fail for another reason,
too.{reasons}

## What it proves

Where a test passes, the engine gives the blocks, order, counts and victims that vLLM's authors wrote down
for vLLM: for text models whose layers attend to all tokens, to a sliding window or to chunks, in one KV cache
group or in several, whose blocks may differ in size. (Such blocks the engine plans for; no model that it runs
has them.) What no test asks, it does not prove. The recorded workloads of [PROOF.md](PROOF.md) have more
steps, these tests more corners.

## Run it

    python -m course.conformance

It takes vLLM's environment ([SETUP.md](../SETUP.md)) with pytest, pytest-asyncio, pytest-timeout and tblib.
The tests come out of vLLM's source distribution, which `--fetch` gets once
([UPSTREAM_PIN.md](../UPSTREAM_PIN.md) says what that takes); `--tests FOLDER` names them where they are
already. The models that they ask for are the shipped checkpoint under other names, so a test that wants a
certain text fails on vLLM too, and is not counted. {left_out} tests are
[left out](../course/conformance/upstream_tests.py), each for a reason that stands there. vLLM computes
uncompiled and in one process here, which saves minutes.

[expected.tsv](../course/conformance/expected.tsv) has the verdict on each test. A run fails if a test comes
to anything else, for better or worse, and names both verdicts. `--only TEXT` looks at the tests whose name
holds TEXT, and `--write` makes the table and this page anew.
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def _kind(word: str) -> str:
    for start in (LACKS, DIFFERS):
        if word.startswith(start):
            return start
    return word


def make_page(table: Mapping[str, str]) -> str:
    """The page for a table of verdicts."""
    kinds = (PASSES, LACKS, DIFFERS, OUTSIDE)
    counts: dict[str, Counter[str]] = {}
    for test, word in table.items():
        file = test.partition("::")[0]
        counts.setdefault(AREAS.get(file, file), Counter())[_kind(word)] += 1
    areas = [
        [area, str(sum(count.values())), *(str(count[kind] or "") for kind in kinds)]
        for area, count in sorted(counts.items(), key=lambda item: -sum(item[1].values()))
    ]
    features = Counter(w.removeprefix(LACKS) for w in table.values() if w.startswith(LACKS))
    total = Counter(_kind(word) for word in table.values())
    reasons = Counter(w.removeprefix(DIFFERS) for w in table.values() if w.startswith(DIFFERS))
    return _TEXT.format(
        files=len({test.partition("::")[0] for test in table}),
        total=len(table),
        entered=len(table) - total[OUTSIDE],
        passes=total[PASSES],
        lacks=total[LACKS],
        left_out=len(LEFT_OUT),
        differs=f"{total[DIFFERS]} differ" if total[DIFFERS] else "none differs",
        outside=total[OUTSIDE],
        areas=_table(["", "vLLM passes", "passes", "lacks", "differs", "outside"], areas),
        features=_table(
            ["feature", "tests"], [[name, str(n)] for name, n in features.most_common()]
        ),
        reasons="".join(
            f"\n\n{n} {'differs' if n == 1 else 'differ'}: {reason}."
            for reason, n in reasons.most_common()
        ),
    )
