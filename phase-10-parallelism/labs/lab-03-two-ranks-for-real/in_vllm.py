"""Given: what real vLLM's ranks do, on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   your predictions beside vLLM, a line per split
    python in_vllm.py --record               write recorded.json, which the tests read

Every run is an engine in a process of its own, whose workers are processes again. A function that is sent
to the workers wraps what their communicators call. `VLLM_CPU_OMP_THREADS_BIND="0|1"` would give each of two
workers a core; here they are left unbound, since some splits have four.

Two things differ from a plain start. vLLM's CPU build hands arrays from stage to stage whole, through shared
memory; but in the run of that name they go as on a GPU, each rank's share by itself. And with experts shared
out the CPU build drops the map from all experts to a rank's own: it is put back
(course/parity/experts_run.py).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NAME = "lab_10_03_support"
support = load_module(HERE / "support.py", NAME)
LLAMA, MIXTRAL = "tiny-llama", "tiny-mixtral"
RUNS: dict[str, dict[str, Any]] = {
    "tp 1": {"model": LLAMA, "split": {}},
    "tp 2": {"model": LLAMA, "split": {"tp": 2}, "memory": [64, 40]},
    "tp 4": {"model": LLAMA, "split": {"tp": 4}, "memory": [64, 32, 48, 64]},
    "pp 2": {"model": LLAMA, "split": {"pp": 2}, "memory": [64, 64]},
    "pp 3": {"model": LLAMA, "split": {"pp": 3}, "memory": [40, 48, 28]},
    "tp 2, pp 2": {"model": LLAMA, "split": {"tp": 2, "pp": 2}, "memory": [64, 64, 64, 24]},
    "experts, tp 2": {"model": MIXTRAL, "split": {"tp": 2}},
    "experts, tp 2, ep": {"model": MIXTRAL, "split": {"tp": 2, "ep": 1}},
    "embedding not summed": {"model": LLAMA, "split": {"tp": 2}, "fault": "embedding"},
    "o_proj not summed": {"model": LLAMA, "split": {"tp": 2}, "fault": "o_proj"},
    "prompt logprobs": {"model": LLAMA, "split": {"tp": 2}, "prompt_logprobs": 0},
    "handed over whole": {"model": LLAMA, "split": {"tp": 2, "pp": 2}, "whole": True},
}
"""`memory`: MiB that each worker says it has for the KV cache. Else there are NUM_BLOCKS blocks."""


def watch(worker: Any, whole: bool, fault: str) -> None:
    """In a worker: note from now on, for each step, its tokens and what goes through the two groups."""
    from collections import Counter

    import torch
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers import vocab_parallel_embedding

    steps: list[Any] = []
    worker.noted_steps = steps

    def note(kind: str, tensor: Any) -> None:
        if steps:
            steps[-1][2][kind, tuple(tensor.shape), tensor.numel() * tensor.element_size()] += 1

    def wrap(communicator: Any, kind: str) -> None:
        call = getattr(communicator, kind)

        def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            note(kind, tensor)
            return call(tensor, *args, **kwargs)

        setattr(communicator, kind, noted)

    execute = worker.execute_model

    def step(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = scheduler_output.num_scheduled_tokens
        if tokens:
            steps.append((sum(tokens.values()), len(tokens), Counter()))
        return execute(scheduler_output, *args, **kwargs)

    worker.execute_model = step
    tensor_group: Any = parallel_state.get_tp_group()
    if tensor_group.world_size > 1:
        for kind in ("all_reduce", "all_gather", "gather", "reduce_scatter", "broadcast"):
            if hasattr(tensor_group.device_communicator, kind):
                wrap(tensor_group.device_communicator, kind)
    pipeline: Any = parallel_state.get_pp_group()
    if pipeline.world_size > 1 and whole:
        send_dict = pipeline.device_communicator.send_tensor_dict

        def send_whole(tensors: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            for tensor in tensors.values():
                note("send", tensor)
            return send_dict(tensors, *args, **kwargs)

        pipeline.device_communicator.send_tensor_dict = send_whole
    elif pipeline.world_size > 1:
        pipeline.use_cpu_custom_send_recv = False
        torch_isend, send = torch.distributed.isend, pipeline.isend_tensor_dict

        def send_shares(*args: Any, **kwargs: Any) -> Any:
            def isend(tensor: Any, *a: Any, **k: Any) -> Any:
                note("send", tensor)
                return torch_isend(tensor, *a, **k)

            torch.distributed.isend = isend
            try:
                return send(*args, **kwargs)
            finally:
                torch.distributed.isend = torch_isend

        pipeline.isend_tensor_dict = send_shares
    if fault == "embedding":
        vocab_parallel_embedding.tensor_model_parallel_all_reduce = lambda tensor: tensor
    if fault == "o_proj":
        for layer in worker.model_runner.model.model.layers:
            layer.self_attn.o_proj.reduce_results = False


def read(worker: Any) -> list[Any]:
    """In a worker: its steps so far."""
    return [
        [tokens, requests, [[*call, times] for call, times in sorted(calls.items())]]
        for tokens, requests, calls in worker.noted_steps
    ]


def look(worker: Any) -> dict[str, Any]:
    """In a worker: the shapes of its parameters and of its cache, and what its linear layers say of theirs.

    A layer is named `layer`, whichever of the worker's it is, where all of them have the same shapes.
    """
    model = worker.model_runner.model
    shown, cut = {}, {}
    for name, tensor in model.named_parameters():
        head, _, rest = name.partition("layers.")
        number, _, rest = rest.partition(".")
        shown[f"layer.{rest}" if number else head] = list(tensor.shape)
    for name, module in model.named_modules():
        if hasattr(module, "output_size_per_partition"):
            sizes = [module.output_size_per_partition, module.input_size_per_partition]
            cut[name.rpartition(".")[2]] = sizes
    caches = worker.model_runner.kv_caches
    return {
        "process": os.getpid(),
        "layers": [layer.__class__.__name__ != "PPMissingLayer" for layer in model.model.layers],
        "parameters": shown,
        "linear layers": cut,
        "kv_caches": [len(caches), list(caches[0].shape)],
    }


def run(name: str) -> dict[str, Any]:
    """In a process of its own: one of RUNS."""
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    asked = RUNS[name]
    memory = [mib << 20 for mib in asked.get("memory", [])]
    more: dict[str, Any] = {"num_gpu_blocks_override": support.NUM_BLOCKS}
    if memory:
        more = {}
        ask = MultiprocExecutor.determine_available_memory  # runs each worker once, for its buffers
        MultiprocExecutor.determine_available_memory = lambda self: ask(self) and memory
    llm = LLM(
        str(support.MODELS[asked["model"]][0]), dtype="float32", enforce_eager=True,
        distributed_executor_backend="mp", async_scheduling=False,
        **support.SETTINGS, **support.llm_settings(asked["split"]), **more,
    )  # fmt: skip
    llm.collective_rpc(watch, args=(asked.get("whole", False), asked.get("fault", "")))
    logprobs = {"prompt_logprobs": asked["prompt_logprobs"]} if "prompt_logprobs" in asked else {}
    greedy = SamplingParams(
        temperature=0, max_tokens=support.NUM_TOKENS, ignore_eos=True, **logprobs
    )
    prompts = [{"prompt_token_ids": ids} for ids in support.prompts()]
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    executor: Any = llm.llm_engine.model_executor
    workers = llm.collective_rpc(look)
    processes = {os.getpid(), *(worker.pop("process") for worker in workers)}
    return {
        **asked,
        "processes": len(processes),
        "blocks": llm.llm_engine.vllm_config.cache_config.num_gpu_blocks,
        "output_rank": executor.output_rank,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "workers": workers,
        "steps": llm.collective_rpc(read),
    }


def start(name: str) -> dict[str, Any]:
    """`run`, in a process of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TORCH"))} | {
        "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, "--run", name], cwd=ROOT, env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"model"')]
    if not lines:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    found: dict[str, Any] = json.loads(lines[0])
    return found


def main(which: str = "starter", *names: str) -> None:
    if which == "--run":
        print(json.dumps(run(names[0])), flush=True)
        return
    need_vllm()
    if which == "--record":
        made = {
            "date": datetime.now(UTC).date().isoformat(), "vllm": "0.22.1",
            "python": platform.python_version(), "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "script": "in_vllm.py --record", "runs": {},
        }  # fmt: skip
        if names:
            made["runs"] = json.loads(support.RECORDED.read_text("utf-8"))["runs"]
        for name in names or RUNS:
            made["runs"][name] = one = start(name)
            print(name, "blocks", one["blocks"], "steps", len(one["steps"][0]), flush=True)
            made["runs"] = {key: made["runs"][key] for key in RUNS if key in made["runs"]}
            support.RECORDED.write_text(support.pack(made), "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", "lab_10_03_lab")
    for name in names or RUNS:
        one = start(name)
        print(f"{name:22} {support.compare(lab, one)}", flush=True)


if "--run" in sys.argv:  # here, and in each worker's process
    from course.parity.experts_run import route_to_own_experts
    from course.parity.tokens_run import lift_the_fault

    lift_the_fault()
    route_to_own_experts()
if __name__ == "__main__":
    main(*sys.argv[1:])
