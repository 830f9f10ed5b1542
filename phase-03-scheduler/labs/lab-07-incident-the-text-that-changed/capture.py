"""Lab 03-07: the incident, recorded again from real vLLM on a CPU.

    python phase-03-scheduler/labs/lab-07-incident-the-text-that-changed/capture.py

Plays three days on three fresh engines and writes `incident/answers.jsonl`, who was told what;
`incident/server.log`, what vLLM itself logged on Tuesday about settings, cache and requests; and
`incident/tuesday.jsonl` and `incident/wednesday.jsonl`, a line for each step of its scheduler. The engine
runs in this process, so that the scheduler can be read between planning a step and computing it.

Reading this file gives away what the engine was asked to do. Needs vLLM (SETUP.md); about a minute and a
half. The steps and the texts come out the same each time; the log's times do not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOG_STATS_INTERVAL": "2",
    "TORCH_COMPILE_DISABLE": "1",
    "NO_COLOR": "1",
}

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from course.learner.labs import load_support  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402

support = load_support(__file__)

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "async_scheduling": False,
    "num_gpu_blocks_override": support.SETTINGS["num_gpu_blocks"],
    "disable_log_stats": False,
} | {name: value for name, value in support.SETTINGS.items() if name != "num_gpu_blocks"}
TRACED = ("tuesday", "wednesday")

# Lines about the settings, the cache and the requests. The one that prints the whole config is cut.
KEEP = re.compile(
    r"non-default args|Initializing a V1|for KV cache|KV cache size|Maximum concurrency|"
    r"num_gpu_blocks|Chunked prefill|synchronous scheduling|ERROR|Avg prompt throughput"
)
LONGEST = 360
PAUSE = 0.15  # seconds after each step, so that the log has time to speak


def own(request_id: str) -> str:
    """The id that the client gave, without the random digits that vLLM puts behind it."""
    return re.sub(r"-[0-9a-f]{8}$", "", request_id)


class Watch:
    """Reads the scheduler when it has planned a step, before the step is computed."""

    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.core.kv_cache_utils import get_block_hash

        self.scheduler, self.hash_of = scheduler, get_block_hash
        self.labels: dict[bytes, str] = {}
        self.record: dict[str, Any] = {}
        self.schedule = scheduler.schedule
        scheduler.schedule = self.watched

    def watched(self) -> Any:
        plan = self.schedule()
        manager = self.scheduler.kv_cache_manager
        for request in self.scheduler.requests.values():
            for index, block_hash in enumerate(request.block_hashes):
                self.labels.setdefault(bytes(block_hash), f"{own(request.request_id)}[{index}]")
        starts = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        counts = plan.num_scheduled_tokens
        tables = {i: list(manager.get_block_ids(i)[0]) for i in self.scheduler.requests}
        published = {}
        for block in manager.block_pool.blocks:
            if block.block_hash is not None:
                block_hash = bytes(self.hash_of(block.block_hash))
                published[str(block.block_id)] = self.labels[block_hash]
        self.record = {
            "computes": {own(i): [starts[i], starts[i] + n] for i, n in counts.items()},
            "preempted": sorted(map(own, plan.preempted_req_ids or ())),
            "tables": {own(i): table for i, table in tables.items() if table},
            "published": published,
            "free_blocks": manager.block_pool.get_num_free_blocks(),
            "running": [own(r.request_id) for r in self.scheduler.running],
            "waiting": [own(r.request_id) for r in self.scheduler.waiting],
        }
        return plan


def play(day: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A day on a fresh engine: a record a step, and everybody's text."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = vllm.LLM(str(DEFAULT_MODEL), distributed_executor_backend=UniProcExecutor, **SETTINGS)
    engine = llm.llm_engine
    watch = Watch(engine.engine_core.engine_core.scheduler)
    due = support.requests(day)
    ended: dict[str | None, int] = {None: 0}
    texts: dict[str, str] = {}
    records: list[dict[str, Any]] = []
    while due or engine.has_unfinished_requests():
        record: dict[str, Any] = {"step": len(records)}
        arrives = []
        for request in list(due):
            start = ended.get(request["after"])
            if start is None or len(records) < start + request.get("at", 0):
                continue
            due.remove(request)
            sampling = vllm.SamplingParams(
                temperature=0, max_tokens=request["max_tokens"], ignore_eos=True
            )
            prompt = {"prompt_token_ids": request["prompt"], "cache_salt": request["who"]}
            engine.add_request(request["id"], prompt, sampling, priority=request["priority"])
            told = {"id": request["id"], "prompt": len(request["prompt"])}
            told |= {k: request[k] for k in ("max_tokens", "priority")}
            arrives.append(told | {"cache_salt": request["who"]})
        if arrives:
            record["arrives"] = arrives
        outputs = engine.step()
        record |= watch.record
        finished = [o for o in outputs if o.finished]
        for output in finished:
            texts[output.request_id] = output.outputs[0].text
            ended[output.request_id] = len(records) + 1
        if finished:
            record["finished"] = [output.request_id for output in finished]
        records.append(record)
        time.sleep(PAUSE)
    return records, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "incident", help="folder to write to")
    args = parser.parse_args()
    lines: dict[str, list[str]] = {day: [] for day in support.DAYS}
    today = support.DAYS[0]

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines[today].append(self.format(record))

    import vllm  # noqa: F401  # sets up the logger

    handler = Keep()
    handler.setFormatter(logging.getLogger("vllm").handlers[0].formatter)
    logging.getLogger("vllm").addHandler(handler)
    args.out.mkdir(exist_ok=True)
    answers = []
    for today in support.DAYS:
        records, texts = play(today)
        answers += [{"day": today, "id": name, "text": text} for name, text in texts.items()]
        if today in TRACED:
            write(args.out / f"{today}.jsonl", records)
    write(args.out / "answers.jsonl", answers)
    log = "\n".join(lines["tuesday"]).replace(str(DEFAULT_MODEL), "models/tiny-llama")
    kept = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in log.splitlines() if KEEP.search(line)]
    kept = [line if len(line) <= LONGEST else line[:LONGEST] + " [cut]" for line in kept]
    (args.out / "server.log").write_text("\n".join(kept) + "\n", encoding="utf-8")
    print(f"{len(kept)} lines of log, {len(answers)} answers: {args.out}")
    for answer in answers:
        print("  {day:9}  {id:5}  {text!r}".format(**answer))


def write(path: Path, records: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(r, separators=(", ", ": ")) + "\n" for r in records)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
