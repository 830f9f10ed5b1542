"""Lab 02-08: the incident, recorded again from real vLLM on a CPU.

    python phase-02-paged-attention/labs/lab-08-incident-the-request-that-never-ran/capture.py

Writes `incident/server.log`, what vLLM itself logged about settings, cache and requests, and
`incident/trace.jsonl`, a line for each step of its scheduler, or for several that are alike. The
engine runs in this process, so that the scheduler can be read between two steps, and the run ends
after a fixed number of steps, whatever has become of the requests.

Reading this file gives away what the engine was asked to do, which is half of the answer. Needs vLLM
(SETUP.md); about a minute. The steps come out the same each time; the log's times do not.
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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOG_STATS_INTERVAL": "2",
    "TORCH_COMPILE_DISABLE": "1",
    "NO_COLOR": "1",
}
os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # on a CPU it would overrule kv_cache_memory_bytes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 16,
    "kv_cache_memory_bytes": 1 << 20,
    "max_model_len": -1,
    "max_num_seqs": 8,
    "disable_log_stats": False,
}
ARRIVALS = {  # before which step: id, prompt tokens, max_tokens
    0: ("greeting-1", 30, 12),
    2: ("mail-2", 61, 20),
    30: ("contract-3", 505, 6),
    31: ("mail-4", 52, 16),
    50: ("greeting-5", 25, 12),
    170: ("minutes-6", 470, 40),
    174: ("mail-7", 40, 12),
    250: ("greeting-8", 26, 12),
}
LEAVES = {150: "contract-3"}  # its client has waited long enough
STEPS = 340

# Lines about the settings, the cache and the requests. The one that prints the whole config is cut.
KEEP = re.compile(
    r"non-default args|Initializing a V1|max_model_len=-|Auto-fit|for KV cache|KV cache size|"
    r"Maximum concurrency|Avg prompt throughput"
)
LONGEST = 320


def prompt(length: int, number: int) -> list[int]:
    """Token ids that no other request of the incident begins with."""
    return [1, *((number * 41 + i * 7) % 90 + 40 for i in range(length - 1))]


def own(request_id: str) -> str:
    """The id that the client gave, without the random digits that vLLM puts behind it."""
    return re.sub(r"-[0-9a-f]{8}$", "", request_id)


def state(scheduler: Any) -> dict[str, Any]:
    """What the scheduler knows between two steps, as data."""
    requests = scheduler.requests.items()
    return {
        "running": [own(r.request_id) for r in scheduler.running],
        "waiting": [own(r.request_id) for r in scheduler.waiting],
        "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "computed": {own(i): [r.num_computed_tokens, r.num_tokens] for i, r in requests},
    }


def run(engine: Any, params: Any, pause: float) -> list[dict[str, Any]]:
    """Drive the engine through the incident; a record a step, those that repeat folded into one."""
    scheduler = engine.engine_core.engine_core.scheduler
    decided: list[Any] = []
    schedule = scheduler.schedule

    def watched() -> Any:
        decided.append(schedule())
        return decided[-1]

    scheduler.schedule = watched
    records: list[dict[str, Any]] = []
    for step in range(STEPS):
        record: dict[str, Any] = {"step": step}
        if step in ARRIVALS:
            request_id, length, max_tokens = ARRIVALS[step]
            sampling = params(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            token_ids = prompt(length, list(ARRIVALS).index(step))
            engine.add_request(request_id, {"prompt_token_ids": token_ids}, sampling)
            record["arrives"] = {"id": request_id, "prompt": length, "max_tokens": max_tokens}
        if step in LEAVES:
            engine.abort_request([LEAVES[step]])
            record["leaves"] = LEAVES[step]
        decided.clear()
        outputs = engine.step()
        [plan] = decided or [None]
        scheduled = plan.num_scheduled_tokens if plan else {}
        record["scheduled"] = {own(i): n for i, n in scheduled.items()}
        record["preempted"] = sorted(map(own, (plan.preempted_req_ids if plan else None) or ()))
        if ended := [o.request_id for o in outputs if o.finished]:
            record["finished"] = ended
        record |= state(scheduler)
        previous = records[-1] if records else None
        if previous is not None and _same(previous, record):
            previous["until"] = step
        else:
            records.append(record)
        if not record["scheduled"]:
            time.sleep(pause)
    return records


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a step says nothing that the one before did not say."""
    quiet = [{k: v for k, v in r.items() if k not in ("step", "until")} for r in (before, now)]
    return quiet[0] == quiet[1] and not now["scheduled"] and not now["preempted"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "incident", help="folder to write to")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.05,
        help="seconds after a step that computed nothing, so that the log has time to speak (0.05)",
    )
    args = parser.parse_args()
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    handler = Keep()
    handler.setFormatter(logging.getLogger("vllm").handlers[0].formatter)
    logging.getLogger("vllm").addHandler(handler)
    llm = vllm.LLM(str(DEFAULT_MODEL), distributed_executor_backend=UniProcExecutor, **SETTINGS)
    records = run(llm.llm_engine, vllm.SamplingParams, args.pause)
    args.out.mkdir(exist_ok=True)
    log = "\n".join(lines).replace(str(DEFAULT_MODEL), "models/tiny-llama")
    kept = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in log.splitlines() if KEEP.search(line)]
    kept = [line if len(line) <= LONGEST else line[:LONGEST] + " [cut]" for line in kept]
    (args.out / "server.log").write_text("\n".join(kept) + "\n", encoding="utf-8")
    trace = "".join(json.dumps(r, separators=(", ", ": ")) + "\n" for r in records)
    (args.out / "trace.jsonl").write_text(trace, encoding="utf-8")
    print(f"{len(kept)} lines of log, {len(records)} records of {STEPS} steps: {args.out}")


if __name__ == "__main__":
    main()
