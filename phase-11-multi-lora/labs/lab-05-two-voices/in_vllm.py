"""Given: the scenes on real vLLM, on a CPU. Needs vLLM 0.22.1; `course grade` does not.

python in_vllm.py            each scene's answers, and how many prompt tokens came from the cache
python in_vllm.py --record   write recorded.json, which the tests read
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_05_support")


def play_in_place(server: Any, make_lora: Any) -> int:
    """Ada's request is under way when her adapter is reloaded in place; then she asks as before.

    vLLM's server keeps the request for an adapter as it was made, `load_inplace` included, and gives it to
    every request under the name. So does this. Returns how often a folder was read for those that came
    after.
    """
    support.begin(server)
    server.ask("ada long", "ada", support.LONGER, max_tokens=20)
    for _ in range(8):
        server.step()
    number = server.adapters["ada"].lora_int_id
    stored = make_lora("ada", number, str(support.ADAPTERS / "telegram"), load_inplace=True)
    server.engine.add_lora(stored)
    server.folders[number] = "telegram"
    server.adapters["ada"] = stored
    server.run()
    manager = server.engine.model_executor.driver_worker.worker.model_runner.lora_manager
    read = manager._load_adapter
    loads = []

    def load(request: Any) -> Any:
        loads.append(request.lora_int_id)
        return read(request)

    manager._load_adapter = load
    server.ask("ada 2", "ada", max_tokens=8)
    server.run()
    return len(loads)


def play_not_read_first(server: Any) -> str:
    """Old and new are in one step, and the new adapter was not read when it was loaded: as
    `LLM.generate` does it, which reads an adapter in the step. How that ends."""
    support.begin(server)
    server.ask("ada long", "ada", support.LONGER, max_tokens=20)
    server.step()
    server.told = lambda lora: None
    server.load("ada", "telegram")
    server.ask("ada 2", "ada")
    try:
        server.run()
    except ValueError as error:
        return type(error).__name__
    return "both answered"


def scenes(make_lora: Any) -> dict[str, Any]:
    """All scenes; the last ends with the engine in pieces."""
    return {
        **support.SCENES,
        "in place": lambda server: play_in_place(server, make_lora),
        "not read first": play_not_read_first,
    }


def play_all() -> dict[str, dict[str, Any]]:
    """What real vLLM makes of each scene, on one engine, whose cache is emptied between two."""
    import vllm
    from vllm.lora.request import LoRARequest
    from vllm.utils import torch_utils
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    engine = vllm.LLM(
        str(support.DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        async_scheduling=False,
        distributed_executor_backend=UniProcExecutor,
        num_gpu_blocks_override=support.NUM_BLOCKS,
        **support.SETTINGS,
    ).llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule
    found = {}
    last_number = 0
    for name, scene in scenes(LoRARequest).items():
        scheduler.schedule = schedule
        assert engine.reset_prefix_cache()
        server = support.Server(
            engine, scheduler, vllm.SamplingParams, LoRARequest, engine.add_lora, last_number
        )
        found[name] = support.told_of(server, scene(server))
        last_number = server.last_number
    return found


def main(*flags: str) -> None:
    need_vllm()
    played = play_all()
    if "--record" in flags:
        scenes = []
        for name, scene in played.items():
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in scene.pop("rows"))
            head = json.dumps(scene, separators=(",", ":"))[:-1]
            scenes.append(f'{json.dumps(name)}:{head},"rows":[\n{rows}\n]}}')
        text = ",\n".join(scenes)
        support.RECORDED.write_text(f'{{"vllm":"0.22.1","scenes":{{\n{text}\n}}}}\n', "utf-8")
        return
    for name, scene in played.items():
        print(name, "" if scene["said"] is None else scene["said"])
        for request, tokens in scene["answers"].items():
            print(f"  {request:9} {scene['cached'].get(request)!s:4} {support.decode(tokens)!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
