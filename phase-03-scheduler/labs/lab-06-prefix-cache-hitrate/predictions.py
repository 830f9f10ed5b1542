"""Given: a lab's functions on a record of vLLM's, as pairs of what vLLM said and what they say.

capture.py prints the pairs, the lab's tests and the live ones in tests/engine compare them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mini_vllm.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
RECORD = HERE / "capture.jsonl"
MODEL = HERE.parents[2] / "mini_vllm" / "checkpoints" / "tiny-llama"
AMPLE = ("caching on", "caching off", "the default block")
"""The groups in which nothing is evicted and nobody waits."""

Line = dict[str, Any]
Pair = tuple[str, Any, Any]


def read_capture() -> list[Line]:
    """The committed capture: how it was made, then a record for each workload."""
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


@cache
def tokenizer() -> Tokenizer:
    """The shipped checkpoint's."""
    return Tokenizer.from_folder(MODEL)


def visits(lab: Any, line: Line) -> dict[str, Any]:
    """Who asked, by name and in order, as the lab's `Visit`."""
    encode = tokenizer().encode
    answers = line["said"]["answers"]
    made: dict[str, Any] = {}
    for asks in line["rounds"]:
        for ask in asks:
            name, follows = ask["name"], ask["follows"]
            past = made[follows].tokens + made[follows].answer if follows else ()
            tokens = past + tuple(encode(ask["text"], not past))
            made[name] = lab.Visit(
                tokens, ask["salt"], not ask["prompt_logprobs"], tuple(answers[name])
            )
    return made


def steps(lab: Any, line: Line) -> list[Any]:
    """The steps of a workload, as the lab's `Step`; the record keeps equal neighbours once."""
    made = []
    for times, looks, computed, sampled in line["said"]["steps"]:
        lookups = tuple(lab.Lookup(name, n, hits, bool(again)) for name, n, hits, again in looks)
        made += [lab.Step(lookups, computed, frozenset(sampled))] * times
    return made


def predict(lab: Any, line: Line) -> Iterator[Pair]:
    """What is predicted, what vLLM said, and what the functions of `lab` say."""
    if line["group"] in AMPLE:
        yield from of_prompts(lab, line)
    yield from of_meters(lab, line)


def of_prompts(lab: Any, line: Line) -> Iterator[Pair]:
    """From prompts, salts and answers alone: what is found, what is computed, and the blocks in use."""
    said = line["said"]
    asked = visits(lab, line)
    size, caching = said["block_size"], said["enable_prefix_caching"]
    found = lab.found_tokens(list(asked.values()), size, caching)
    yield "num_cached_tokens", list(said["num_cached_tokens"].values()), found
    computed = sum(len(visit.tokens) for visit in asked.values()) - sum(found)
    yield "prompt tokens computed", said["counters"][source("local_compute")], computed
    if len(line["rounds"]) == 1 and all(ask["max_tokens"] > 1 for ask in line["rounds"][0]):
        lengths = [len(visit.tokens) for visit in asked.values()]
        used = lab.usage(lengths, found, said["num_gpu_blocks"], size)
        yield "KV cache usage after step 1", f"{said['usage'][0]:.1%}", f"{used:.1%}"


def source(label: str) -> str:
    """The counter of prompt tokens with this label."""
    return f"vllm:prompt_tokens_by_source{{source={label}}}"


def of_meters(lab: Any, line: Line) -> Iterator[Pair]:
    """From the steps: every meter that vLLM has."""
    said = line["said"]
    counted, sent = said["counters"], said["sent"]
    made = steps(lab, line)
    theirs = (sent["queries"], sent["hits"])
    yield "queries and hits, server", theirs, tuple(lab.counters(made))
    theirs = (counted["vllm:prefix_cache_queries"], counted["vllm:prefix_cache_hits"])
    yield "queries and hits, offline LLM", theirs, tuple(lab.counters_offline(made))
    theirs = (counted[source("local_compute")], counted[source("local_cache_hit")])
    mine = tuple(lab.by_source(made, said["num_prompt_tokens"]))
    yield "local_compute and local_cache_hit", theirs, mine
    _, queries, hits = said["window"]
    rate = lab.line_rate(made)
    share = hits / queries if queries else 0.0
    yield "window of the log line", f"{share:.6f}", f"{rate:.6f}"
    yield "log line", said["log"].rpartition(", ")[2], f"Prefix cache hit rate: {rate:.1%}"


def reasons(lab: Any, line: Line) -> dict[str, Any]:
    """A diagnosis for each request that found nothing, by name."""
    said = line["said"]
    asked = visits(lab, line)
    everybody = list(asked.values())
    size, caching = said["block_size"], said["enable_prefix_caching"]
    return {
        name: lab.diagnose(everybody, place, 0, size, caching)
        for place, name in enumerate(asked)
        if said["num_cached_tokens"][name] == 0
    }
