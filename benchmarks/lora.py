"""Many adapters in a batch: 1, 4 and 16 for 64 requests, beside the base alone, here and in vLLM.

    python -m benchmarks.lora [--save]

`mini_vllm` and vLLM's CPU backend (eager, everything in one process), each without `enable_lora`, and
with it and 16 slots. The adapters are random, of rank 8 for all seven linears. The requests take turns: with
4 adapters, request i has number i modulo 4. All have one, because vLLM's CPU build gives a row without one in
such a batch the last slot's (`vllm/lora/ops/torch_ops/lora_ops.py:67 bgmv_shrink`). `adapters` 0 is the same
engine with adapters on and none in the batch.

Greedy, EOS ignored, synchronous scheduling. Rounds alternate, those that wait are stopped (SIGSTOP), the best
round counts; the first one loads the adapters and is left out. `/ base` is the speed beside the same engine
without `enable_lora`, `CPU / base` the same by the processor time of all threads, which a busy machine
disturbs less; where others use the machine, add `--threads 1`, because threads that wait for each other burn
time of their own. `/ vLLM` and `CPU / vLLM` compare a row of `mini_vllm` with vLLM's of as many adapters.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks import generate, machine
from mini_vllm.utils.blas import faster_core_type

ADAPTERS = (0, 1, 4, 16)
BATCH = 64
RANK = 8
Adapter = tuple[str, int, str]
"""Name, number and folder, as both engines' `LoRARequest` takes them."""

Question = dict[str, Any]


def make_adapters(folder: Path, count: int) -> list[Adapter]:
    """Random ones for the shipped model, small enough to change some tokens and not all."""
    config = json.loads((generate.MODEL / "config.json").read_text("utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    sizes = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, kv_heads),
        "self_attn.v_proj": (hidden, kv_heads), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }  # fmt: skip
    settings = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none",
        "target_modules": [name.split(".")[1] for name in sizes],
    }  # fmt: skip
    found: list[Adapter] = []
    for number in range(1, count + 1):
        rng, tensors = np.random.default_rng(number), {}
        for layer in range(config["num_hidden_layers"]):
            for name, (size, out) in sizes.items():
                prefix = f"base_model.model.model.layers.{layer}.{name}"
                for letter, shape in (("A", (RANK, size)), ("B", (out, RANK))):
                    values = rng.normal(scale=0.03, size=shape).astype(np.float32)
                    tensors[f"{prefix}.lora_{letter}.weight"] = values
        place = folder / f"adapter-{number}"
        place.mkdir()
        (place / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        save_file(tensors, place / "adapter_model.safetensors")
        found.append((place.name, number, str(place)))
    return found


def share_out(adapters: list[Adapter], count: int, requests: int) -> list[Adapter | None]:
    """Each request's adapter, the first `count` in turn; None for all where there are to be none."""
    return [adapters[i % count] if count else None for i in range(requests)]


def mini_worker(enable_lora: bool) -> Callable[[Question], list[list[int]]]:
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.lora.request import LoRARequest

    settings: dict[str, Any] = {}
    if enable_lora:
        settings = {"enable_lora": True, "max_loras": max(ADAPTERS), "max_lora_rank": RANK}
    llm = LLM(
        generate.MODEL,
        max_model_len=generate.MAX_MODEL_LEN,
        enable_prefix_caching=False,
        **settings,
    )

    def run(question: Question) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=question["max_tokens"], ignore_eos=True)
        asked = [one and LoRARequest(*one) for one in question["adapters"]]
        more: dict[str, Any] = {"lora_request": asked} if enable_lora else {}
        outputs = llm.generate(question["prompts"], params, use_tqdm=False, **more)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run


def vllm_worker(enable_lora: bool) -> Callable[[Question], list[list[int]]]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = os.environ["TORCH_COMPILE_DISABLE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.utils import torch_utils
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    settings: dict[str, Any] = {}
    if enable_lora:
        settings = {"enable_lora": True, "max_loras": max(ADAPTERS), "max_lora_rank": RANK}
    llm = LLM(
        model=str(generate.MODEL), dtype="float32", enforce_eager=True, block_size=16,
        max_model_len=generate.MAX_MODEL_LEN, enable_prefix_caching=False, async_scheduling=False,
        distributed_executor_backend=UniProcExecutor, **settings,
    )  # fmt: skip

    def run(question: Question) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=question["max_tokens"], ignore_eos=True)
        asked = [one and LoRARequest(*one) for one in question["adapters"]]
        more: dict[str, Any] = {"lora_request": asked} if enable_lora else {}
        prompts: Any = [TokensPrompt(prompt_token_ids=prompt) for prompt in question["prompts"]]
        outputs = llm.generate(prompts, params, use_tqdm=False, **more)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run


WORKERS = {"mini_vllm": mini_worker, "vLLM": vllm_worker}


def worker_main(name: str) -> int:
    """Serve the rounds of one engine, `mini_vllm:base` for instance."""
    engine, kind = name.split(":")

    def make() -> Callable[[Question], dict[str, Any]]:
        run = WORKERS[engine](kind == "lora")

        def answer(question: Question) -> dict[str, Any]:
            start, cpu = time.perf_counter(), time.process_time()
            outputs = run(question)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            return {"seconds": seconds, "cpu": cpu, "outputs": outputs}

        return answer

    return generate.serve_rounds(make)


def measure(
    engines: list[str],
    rounds: int,
    input_len: int,
    output_len: int,
    threads: int,
    core_type: str | None,
) -> list[dict[str, Any]]:
    """A row for each engine: the base alone, and each number of adapters.

    Args:
        threads: of each engine; 0 leaves it to them.
        core_type: OPENBLAS_CORETYPE for `mini_vllm`.
    """
    rng = random.Random(0)
    prompts = [
        [1] + [rng.randint(8 + 32, 8 + 126) for _ in range(input_len - 1)] for _ in range(BATCH)
    ]
    best: dict[tuple[str, int | None], dict[str, Any]] = {}
    workers: list[generate.Engine] = []
    with tempfile.TemporaryDirectory() as folder:
        adapters = make_adapters(Path(folder), max(ADAPTERS))
        try:
            for name in (f"{engine}:{kind}" for engine in engines for kind in ("base", "lora")):
                print(f"starting {name}", file=sys.stderr)
                ours = core_type is not None and name.startswith("mini_vllm")
                env = {"OPENBLAS_CORETYPE": str(core_type)} if ours else {}
                if threads:
                    env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
                    env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else it takes a thread per core
                workers.append(generate.Engine(name, str(generate.MODEL), env, "benchmarks.lora"))
            for number in range(rounds + 1):  # the first round warms up
                for worker in workers:
                    engine, kind = worker.name.split(":")
                    for count in ADAPTERS if kind == "lora" else (None,):
                        answer = worker.ask({
                            "prompts": prompts, "max_tokens": output_len,
                            "adapters": share_out(adapters, count or 0, BATCH),
                        })  # fmt: skip
                        if number:
                            keep_best(best, (engine, count), answer)
                print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        finally:
            for worker in workers:
                worker.close()
    return make_rows(best)


def keep_best(
    best: dict[tuple[str, int | None], dict[str, Any]],
    key: tuple[str, int | None],
    answer: dict[str, Any],
) -> None:
    """The least time and the least processor time of all rounds, each by itself."""
    before = best.get(key, answer)
    for name in ("seconds", "cpu"):
        answer[name] = min(answer[name], before[name])
    best[key] = answer


def make_rows(best: dict[tuple[str, int | None], dict[str, Any]]) -> list[dict[str, Any]]:
    """The table: `adapters` is "off" for the base alone; "other texts" counts outputs that differ from
    vLLM's."""
    rows = []
    for (engine, count), mine in best.items():
        base, theirs = best[engine, None], best.get(("vLLM", count))
        tokens = sum(map(len, mine["outputs"]))
        row: dict[str, Any] = {
            "engine": engine, "adapters": "off" if count is None else count,
            "tok/s": tokens / mine["seconds"], "/ base": base["seconds"] / mine["seconds"],
            "CPU / base": base["cpu"] / mine["cpu"], "/ vLLM": None, "CPU / vLLM": None,
            "other texts": None,
        }  # fmt: skip
        if theirs is not None and engine != "vLLM":
            row["/ vLLM"] = theirs["seconds"] / mine["seconds"]
            row["CPU / vLLM"] = theirs["cpu"] / mine["cpu"]
            pairs = zip(mine["outputs"], theirs["outputs"], strict=True)
            row["other texts"] = sum(ours != other for ours, other in pairs)
        rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the warm-up (3)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=64, help="output tokens (64)")
    parser.add_argument("--threads", type=int, default=0, help="of each engine (its own choice)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/lora.json")
    args = parser.parse_args(argv)
    if args.worker:
        return worker_main(args.worker)
    engines = ["mini_vllm"] + ["vLLM"] * (importlib.util.find_spec("vllm") is not None)
    lengths = args.input_len, args.output_len
    rows = measure(engines, args.rounds, *lengths, args.threads, faster_core_type())
    print(machine.table(rows))
    if args.save:
        command = (
            f"python -m benchmarks.lora --input-len {args.input_len} --output-len {args.output_len} "
            f"--rounds {args.rounds} --threads {args.threads}"
        )
        print(machine.save("lora", command, rows, requests=BATCH, load_average=os.getloadavg()[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
