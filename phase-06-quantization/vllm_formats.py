"""Real vLLM on quantised copies of the shipped checkpoint: who takes which layer, and what it refuses.

    python phase-06-quantization/vllm_formats.py                  all topics
    python phase-06-quantization/vllm_formats.py loads weights    some

The copies are made by `mini-vllm quantize` in a folder that is removed at the end. vLLM runs on the CPU, in
this process. Needs vLLM 0.22.1; its CPU build will do. On a processor without AVX-512 that has no kernel for
4 bits, and each such format's answer is what vLLM raises.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL

PHASES = Path(__file__).resolve().parents[1]
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_of_phase_05")
Say = Callable[[str], None]

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_INT4_W4A8": "0",  # with AMX AWQ's activations would be rounded to 8 bits, too
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CONFIGURE_LOGGING": "0",  # what vLLM logs is caught below
}
PROMPTS = ("Once upon a time", "The scheduler", "A block of the cache", "A request")
TOKENS = 24

# --- the checkpoints ---


@cache
def workshop() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="quantised-")


@cache
def made(method: str, **given: Any) -> Path:
    """The shipped checkpoint, quantised with `mini-vllm quantize --method METHOD`."""
    from mini_vllm.compress.quantize import quantize_checkpoint

    folder = Path(workshop().name) / "-".join([method, *map(str, given.values())])
    quantize_checkpoint(DEFAULT_MODEL, folder, method, **given)
    return folder


def changed(folder: Path, name: str, **keys: Any) -> Path:
    """A copy of a checkpoint whose `quantization_config` has some keys otherwise; None removes one."""
    copy = folder.with_name(f"{folder.name}-{name}")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    config = json.loads((copy / "config.json").read_text("utf-8"))
    quantised = config.setdefault("quantization_config", {})
    quantised |= keys
    config["quantization_config"] = {k: v for k, v in quantised.items() if v is not None}
    (copy / "config.json").write_text(json.dumps(config), "utf-8")
    return copy


# --- vLLM ---


class Heard(logging.Handler):
    """Notes what vLLM logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.filename}: {record.getMessage()}")


@contextmanager
def hearing() -> Iterator[Heard]:
    """What vLLM logs meanwhile; what it says once in a process, it says again."""
    from vllm import logger
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        CompressedTensorsWNA16,
    )

    for name, value in vars(logger).items():
        if name.startswith("_print") and hasattr(value, "cache_clear"):
            value.cache_clear()
    CompressedTensorsWNA16._kernel_backends_being_used.clear()
    heard = Heard()
    log = logging.getLogger("vllm")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(heard)
    try:
        yield heard
    finally:
        log.removeHandler(heard)


@contextmanager
def engine(folder: Path, dtype: str = "bfloat16", **given: Any) -> Iterator[Any]:
    """`vllm.LLM` on the checkpoint, its worker in this process."""
    os.environ |= SETTINGS
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    try:
        yield LLM(
            str(folder), dtype=dtype, enforce_eager=True, block_size=32, max_model_len=256, seed=0,
            max_num_seqs=8, max_num_batched_tokens=256,
            distributed_executor_backend=UniProcExecutor, **given,
        )  # fmt: skip
    finally:
        gc.collect()
        cleanup_dist_env_and_memory()


def model_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner.model


def taken_by(layer: Any) -> str:
    """A layer's linear method, scheme and kernel."""
    names = [type(layer.quant_method).__name__]
    scheme = getattr(layer, "scheme", None)
    names += [type(scheme).__name__] if scheme is not None else []
    for name in ("kernel", "fp8_linear", "linear_kernel"):
        kernel = getattr(scheme if scheme is not None else layer.quant_method, name, None)
        names += [type(kernel).__name__] if kernel is not None else []
    return ", ".join(names)


def parameters(layer: Any) -> dict[str, str]:
    return {
        name: f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}"
        for name, p in layer.named_parameters()
    }


# --- topics ---


def words(heard: Heard) -> list[str]:
    """The lines that name a kernel, each once."""
    return [
        line
        for line in dict.fromkeys(heard.lines)
        if re.search(r"(Selected|Using) \w+Kernel", line)
    ]


def loads(say: Say) -> None:
    """Each format that vLLM's CPU build runs: what is logged, who takes a layer, what it then says."""
    for method, dtype in (
        ("none", "bfloat16"), ("w8a8", "bfloat16"), ("smoothquant-w8a8", "float32"),
        ("int4-g128", "bfloat16"), ("gptq", "bfloat16"), ("awq", "bfloat16"),
    ):  # fmt: skip
        folder = DEFAULT_MODEL if method == "none" else made(method)
        with telling(say, f"{method}, {dtype}"), hearing() as heard, engine(folder, dtype) as llm:
            model = model_of(llm)
            say(f"{method}, {dtype}: {llm.llm_engine.vllm_config.model_config.quantization}")
            for line in words(heard):
                say(f"    {line}")
            layer = model.model.layers[0]
            say(f"    qkv_proj: {taken_by(layer.self_attn.qkv_proj)}")
            say(f"    embed_tokens: {type(model.model.embed_tokens.quant_method).__name__}")
            say(f"    {said(llm)!r}")


def said(llm: Any) -> str:
    from vllm import SamplingParams

    [out] = llm.generate(
        PROMPTS[:1], SamplingParams(temperature=0, max_tokens=TOKENS), use_tqdm=False
    )
    return str(out.outputs[0].text)


def weights(say: Say) -> None:
    """A layer's parameters as the checkpoint fills them, and after `process_weights_after_loading`."""
    from vllm.model_executor.model_loader import base_loader

    process = base_loader.process_weights_after_loading
    before: dict[str, dict[str, str]] = {}

    def watched(model: Any, *rest: Any) -> None:
        before["qkv_proj"] = parameters(model.model.layers[0].self_attn.qkv_proj)
        process(model, *rest)

    base_loader.process_weights_after_loading = watched
    try:
        for method in ("w8a8", "int4-g128", "gptq", "awq"):
            with telling(say, method), hearing(), engine(made(method)) as llm:
                after = parameters(model_of(llm).model.layers[0].self_attn.qkv_proj)
                say(f"{method}: qkv_proj, 128 to 256")
                for name in dict.fromkeys([*before["qkv_proj"], *after]):
                    was = before["qkv_proj"].get(name, "")
                    say(f"    {name:16}{was:24}{after.get(name, 'gone')}")
    finally:
        base_loader.process_weights_after_loading = process


def refuses(say: Say) -> None:
    """What the CPU build does not run, and with which sentence it says so."""
    for method, dtype in (("int8", "bfloat16"), ("fp8", "bfloat16"), ("int4-g128", "float32"),
                          ("gptq", "float32"), ("awq", "float32")):  # fmt: skip
        tell_loading(say, f"{method}, {dtype}", made(method), dtype)
    gptq = made("gptq")
    tell_loading(say, "gptq that says 8 bits", changed(gptq, "bits", bits=8))
    tell_loading(say, "gptq that says 3 bits", changed(gptq, "bits", bits=3))
    tell_loading(say, "gptq that says sym: false", changed(gptq, "sym", sym=False))
    tell_loading(say, "gptq that says groups of 48", changed(gptq, "group", group_size=48))
    tell_loading(say, "gptq that says groups of 64", changed(gptq, "group", group_size=64))
    tell_loading(say, "awq without group_size", changed(made("awq"), "group", group_size=None))


def told(say: Say) -> None:
    """The user's `quantization=` beside what the checkpoint says."""
    for method, asked in (("w8a8", "awq"), ("w8a8", "nosuch"), ("gptq", "gptq_marlin"),
                          ("gptq", "awq"), ("awq", "awq_marlin")):  # fmt: skip
        tell_loading(say, f"{method}, {asked!r}", made(method), quantization=asked)
    for asked in (
        "compressed-tensors",
        "fp8",
        "int8_per_channel_weight_only",
        "fbgemm_fp8",
        "nosuch",
    ):
        tell_loading(say, f"not quantised, {asked!r}", DEFAULT_MODEL, quantization=asked)


def tell_loading(say: Say, name: str, folder: Path, dtype: str = "bfloat16", **given: Any) -> None:
    """Load, and say who takes a layer, or what vLLM says in place of it."""
    with telling(say, name), hearing(), engine(folder, dtype, **given) as llm:
        say(f"{name}: loads, {taken_by(model_of(llm).model.layers[0].self_attn.qkv_proj)}")


@contextmanager
def telling(say: Say, name: str) -> Iterator[None]:
    """Say what vLLM raises inside, under that name: it is the answer, and the next format goes on."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:  # a ValueError of vLLM's, inside one of pydantic's
        say(f"{name}: {error.errors()[0]['msg']}")
    except Exception as error:
        head, *more = [" ".join(line.split()) for line in str(error).splitlines()]
        say(f"{name}: {type(error).__name__}: {head}")
        for line in more:
            say(f"    {line}")


TOPICS = {"loads": loads, "weights": weights, "refuses": refuses, "told": told}


def main() -> None:
    os.environ |= SETTINGS
    try:
        for name in topics.wanted(TOPICS):
            topics.tell(name, TOPICS[name])
    finally:
        workshop().cleanup()


if __name__ == "__main__":
    main()
