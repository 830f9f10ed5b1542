"""Real vLLM, several engines in one process, timed in turns. measure.py runs it.

The engines of one comparison are loaded first and stay. A round asks each of them for the same texts, one
engine right behind the other, so that what the machine does besides touches all of them alike.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL

LAB_02 = Path(__file__).resolve().parents[1] / "lab-02-launch-overhead"
BATCHES = (1, 8, 64)
TOKENS = 33
ROUNDS = 5
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One thread: several would wait for each other wherever the machine does something else.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
ON_CPU: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "compiled": {},
}
ON_GPU: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "NONE": {"compilation_config": {"cudagraph_mode": "NONE"}},
    "PIECEWISE": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "FULL_AND_PIECEWISE": {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
}
"""The middle two are compiled alike and differ only in what is captured; so do the last two."""


def engines(kinds: Mapping[str, dict[str, Any]], model: Path, **more: Any) -> dict[str, Any]:
    """One engine for each kind, on one checkpoint; random weights where the folder holds none."""
    os.environ |= SETTINGS
    import vllm
    from vllm.model_executor.layers import rotary_embedding
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    made = {}
    for name, given in kinds.items():
        rotary_embedding._ROPE_DICT.clear()  # else this engine gets the layer the one before chose
        made[name] = vllm.LLM(
            str(model), max_model_len=256, max_num_seqs=max(BATCHES), seed=0,
            enable_prefix_caching=False, distributed_executor_backend=UniProcExecutor,
            load_format="auto" if list(model.glob("*.safetensors")) else "dummy", **(more | given),
        )  # fmt: skip
        print(f"loaded {name}", file=sys.stderr, flush=True)
    return made


def generate(llm: Any, batch: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds, and `tokens` greedy tokens for each of `batch` prompts of 8 tokens."""
    import vllm

    prompts = [{"prompt_token_ids": [i % 64 + 2, *range(3, 10)]} for i in range(batch)]
    wanted = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, wanted, use_tqdm=False)
    return time.perf_counter() - start, [list(out.outputs[0].token_ids) for out in outputs]


def compare(
    made: Mapping[str, Any], batches: tuple[int, ...], tokens: int, rounds: int
) -> dict[str, Any]:
    """Seconds of a decode step for each engine, round by round: a run of `tokens` less a run of one token.

    Returns:
        rows by batch, and whether all engines gave the same tokens.
    """
    rows, same = [], True
    for batch in batches:
        texts = [generate(llm, batch, tokens)[1] for llm in made.values()]  # warm
        same &= all(text == texts[0] for text in texts)
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, llm in made.items():
                first, whole = (generate(llm, batch, n)[0] for n in (1, tokens))
                seconds[name].append((whole - first) / (tokens - 1))
        rows.append({"batch": batch, "seconds": seconds})
        print(f"measured batch {batch}", file=sys.stderr, flush=True)
    return {"tokens": tokens, "same": same, "rows": rows}


def on_cpu() -> dict[str, Any]:
    """vLLM's CPU build on the shipped checkpoint: eager, and as it comes."""
    made = engines(ON_CPU, DEFAULT_MODEL, dtype="float32", block_size=16)
    return compare(made, BATCHES, TOKENS, ROUNDS)


def on_gpu(model: str | None, card: str) -> dict[str, Any]:
    """vLLM on CUDA in the four kinds, side by side in the card's memory."""
    folder = DEFAULT_MODEL if model is None else Path(model)
    sizes = _sizes(folder)
    made = engines(ON_GPU, folder, dtype="bfloat16", gpu_memory_utilization=0.2)
    found = compare(made, BATCHES, TOKENS, ROUNDS)
    captured = {
        name: list(llm.llm_engine.vllm_config.compilation_config.cudagraph_capture_sizes or [])
        for name, llm in made.items()
    }
    return found | {"model": sizes, "card": card, "capture_sizes": captured}


def _sizes(folder: Path) -> dict[str, Any]:
    """What lab 05-02 knows of a model, for 16 bits: name, layers, weights, bytes of a token's K and V."""
    predicting = load_module(LAB_02 / "predict.py", "lab_05_02_predicting")
    model = predicting.model_of(predicting.load_lab("solution"), folder)
    return {
        "name": model.name,
        "layers": model.kernels.layers,
        "params": model.params,
        "kv_bytes_per_token": model.kv_bytes_per_token * 2 // model.bytes_per_param,
    }


def show_graphs(lab: ModuleType, found: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """A row for each batch and kind: what lab 05-02 predicts, what was measured, the gain over NONE."""
    predicting = load_module(LAB_02 / "predict.py", "lab_05_02_predicting")
    lab_02 = predicting.load_lab("solution")
    sizes = dict(found["model"])
    model = lab_02.Model(kernels=lab_02.Kernels(sizes.pop("layers")), **sizes)
    card = predicting.cards(lab_02)[found["card"]]
    say(f"{model.name} on {card.name}; the same tokens: {found['same']}")
    say("batch  kind                  predicted, 05-02       measured  against NONE")
    context = 8 + found["tokens"] // 2
    for row in found["rows"]:
        for name, taken in row["seconds"].items():
            mode = {"eager": "NONE", "FULL_AND_PIECEWISE": "FULL"}.get(name, name)
            low, high = predicting.predict(lab_02, card, model, row["batch"], mode, context).step_s
            seen = lab.gain(list(zip(row["seconds"]["NONE"], taken, strict=True)))
            against = "" if name == "NONE" else f"{seen.ratio:6.2f} {seen.verdict}"
            # lab 05-02's list of kernels is that of a model that is not compiled
            paper = "" if name == "NONE" else f"{low * 1e3:6.2f} to {high * 1e3:6.2f} ms"
            say(f"{row['batch']:5}  {name:20}{paper:>19}{median(taken) * 1e3:12.2f} ms  {against}")
