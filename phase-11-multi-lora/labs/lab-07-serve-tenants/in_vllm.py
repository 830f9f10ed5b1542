"""Given: the morning and the week on real vLLM's server, on a CPU. Needs vLLM 0.22.1.

    python in_vllm.py [solution | starter]   your answers and your plan beside what vLLM does
    python in_vllm.py --record               write recorded.json, which the tests read

The application runs in this process, its engine core in another, as always. That one notes, in a file that
SERVE_TENANTS_LOG names, each time that an adapter is read, and whose requests are in the step that reads it.
No call mixes rows with and without an adapter: on the CPU the pin adds the last slot's product to the latter.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for name, value in (
    ("VLLM_LOGGING_LEVEL", "CRITICAL"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
    ("HF_HUB_OFFLINE", "1"),
    ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"),
    ("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
):
    os.environ.setdefault(name, value)

LOG = "SERVE_TENANTS_LOG"


def take_notes() -> None:
    """In the engine core's process: note what is read and when. Called before the engine is made."""
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    from vllm.utils import torch_utils
    from vllm.v1.core.sched.scheduler import Scheduler

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    step: list[str] | None = None
    load = LRUCacheWorkerLoRAManager._load_adapter
    schedule, update = Scheduler.schedule, Scheduler.update_from_output

    def noted_load(self: Any, lora_request: Any) -> Any:
        with Path(os.environ[LOG]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": lora_request.lora_name, "step": step}) + "\n")
        return load(self, lora_request)

    def noted_schedule(self: Any, *args: Any) -> Any:
        nonlocal step
        output = schedule(self, *args)
        loras = [self.requests[req_id].lora_request for req_id in output.num_scheduled_tokens]
        step = sorted(lora.lora_name if lora else "none" for lora in loras)
        return output

    def noted_update(self: Any, *args: Any) -> Any:
        nonlocal step
        step = None
        return update(self, *args)

    LRUCacheWorkerLoRAManager._load_adapter = noted_load
    Scheduler.schedule, Scheduler.update_from_output = noted_schedule, noted_update


async def with_server(capacity: int, work: Callable[[Any, Any], Any]) -> Any:
    """What `work` gives for a client and the notes of vLLM's server, with so many adapters in memory."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.api_server import (
        build_app,
        build_async_engine_client_from_engine_args,
        init_app_state,
    )
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    flags = (
        f"--model {DEFAULT_MODEL} --served-model-name {support.BASE} --dtype float32 --enforce-eager "
        "--block-size 16 --max-num-seqs 8 --no-async-scheduling --num-gpu-blocks-override 128 "
        f"--max-model-len 512 --enable-lora --max-loras {capacity} --max-cpu-loras {capacity} "
        "--enable-prompt-tokens-details"
    )
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags.split())
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.distributed_executor_backend = UniProcExecutor
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        os.environ[LOG] = str(log)
        seen = 0

        def new_notes() -> list[Any]:
            nonlocal seen
            lines = log.read_text(encoding="utf-8").splitlines()
            found, seen = lines[seen:], len(lines)
            return [json.loads(line) for line in found]

        async with build_async_engine_client_from_engine_args(engine_args) as engine:
            tasks = await engine.get_supported_tasks()
            app = build_app(args, tasks, engine.model_config)
            await init_app_state(engine, app.state, args, tasks)
            return await work(support.Client(app), new_notes)


async def play_morning() -> list[Any]:
    found: list[Any] = await with_server(2, support.play)
    return found


async def play_weeks(plans: Sequence[Sequence[Sequence[str]]]) -> list[list[list[int]]]:
    """Reads before and in each burst, plan by plan, on one server."""

    async def work(client: Any, new_notes: Any) -> list[list[list[int]]]:
        return [await support.play_week(client, support.WEEK, plan, new_notes) for plan in plans]

    found: list[list[list[int]]] = await with_server(support.CAPACITY, work)
    return found


def without_paths(value: Any) -> Any:
    """Without this machine's folders, and without what changes from run to run."""
    if isinstance(value, dict):
        changing = ("created", "permission", "system_fingerprint", "id")
        named = value.get("object") == "model"
        return {
            key: without_paths(one)
            for key, one in value.items()
            if key not in changing or (named and key == "id")
        }
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    if isinstance(value, str):
        return value.replace(str(support.SHIPPED.parent) + "/", "")
    return value


def main(which: str = "starter") -> None:
    need_vllm()
    lab = load_module(HERE / f"{'solution' if which == '--record' else which}.py", "lab_11_07_lab")
    plan = lab.plan_touches(support.WEEK, support.CAPACITY)
    morning = without_paths(asyncio.run(play_morning()))
    week = asyncio.run(play_weeks([plan]))[0]
    if which == "--record":
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in morning)
        text = f'{{"vllm":"0.22.1","morning":[\n{lines}\n],"week":{json.dumps(week)}}}\n'
        support.RECORDED.write_text(text, "utf-8")
        return
    for note in morning:
        said = [f"{note['call']:>3}  status {note['status']}"]
        for read in note["reads"]:
            where = "between steps" if read["step"] is None else f"in a step of {read['step']}"
            said.append(f"reads {read['name']} {where}")
        if "answer" in note and note["status"] == 200:
            said.append(f"{lab.cached_tokens(note['answer'])} tokens cached")
        if "models" in note:
            said.append(f"lists {lab.tenants(note['models'])}")
        if "metrics" in note:
            said.append(f"with requests: {lab.adapters_with_requests(note['metrics'])}")
        print("; ".join(said))
    print(f"your plan's reads before each burst, and in it: {week}")


if __name__ == "__mp_main__":  # the engine core's process
    take_notes()
else:
    from course.learner.labs import load_module, need_vllm

    HERE = Path(__file__).resolve().parent
    support = load_module(HERE / "support.py", "lab_11_07_support")
    if __name__ == "__main__":
        main(*sys.argv[1:2])
