"""What a plain run loads: the core, and a list of names that grows on purpose only.

An ability that is off is not imported (`mini_vllm/README.md`). A new name below fails with that name: import
it where it is switched on, or say here why every run needs it.
"""

from __future__ import annotations

import json
import subprocess
import sys

MOST = 96
"""Modules of `mini_vllm`, packages included."""

RUN = """
import json, sys
from mini_vllm import LLM, SamplingParams
output = LLM().generate(["The KV cache"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0]
assert len(output.outputs[0].token_ids) == 8
print(json.dumps(list(sys.modules)))
"""

CORE = {
    "attention.paged", "core.block_pool", "core.kv_cache_manager", "core.request", "core.sched.output",
    "core.sched.scheduler", "engine.core", "engine.llm_engine", "engine.output_processor",
    "entrypoints.llm", "models.llama", "sample.sampler", "worker.block_table",
    "worker.gpu_input_batch", "worker.model_runner",
}  # fmt: skip
PACKAGES = {
    "attention", "config", "core", "core.sched", "engine", "entrypoints", "executor", "layers",
    "layers.quantization", "model_loader", "models", "sample", "tokenizer", "utils", "worker",
}  # fmt: skip
BESIDE = {
    # Settings, and what an engine is made of by them.
    "config.cache", "config.checks", "config.compilation", "config.engine", "config.model", "config.rope",
    "config.parallel", "config.scheduler", "engine.arg_utils", "engine.build", "engine.parts", "inputs",
    "outputs", "sampling_params", "version", "worker.memory",
    # A checkpoint, and its text.
    "engine.detokenizer", "engine.input_processor", "model_loader.loader", "model_loader.names",
    "model_loader.progress", "model_loader.safetensors_file", "model_loader.weight_utils",
    "models.interfaces_base", "models.registry", "tokenizer.byte_level_bpe", "tokenizer.check",
    "tokenizer.tokenizer",
    # Small parts of the scheduler and of the KV cache.
    "core.kv_cache_groups", "core.kv_cache_interface", "core.kv_cache_utils", "core.sched.drafts",
    "core.sched.admission", "core.sched.request_queue", "core.sched.step", "core.sched.utils", "core.stats",
    # What stands between two of the core's parts.
    "engine.core_client", "engine.step_record", "executor.abstract", "executor.uniproc_executor",
    "worker.components", "worker.forward",
    # Arithmetic.
    "attention.metadata", "attention.online", "attention.registry", "attention.tiled",
    "layers.activation", "layers.layernorm", "layers.linear", "layers.quantization.base",
    "layers.rotary_embedding", "sample.generator", "sample.logitsprocs", "sample.metadata", "sample.ops",
    # Tools.
    "utils.blas", "utils.lazy", "utils.math", "utils.memory", "utils.params", "utils.surface",
    "utils.threads", "utils.untrusted", "utils.values",
}  # fmt: skip


def test_a_plain_run_loads_what_is_named_here_and_nothing_else() -> None:
    run = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    modules = json.loads(run.stdout.splitlines()[-1])
    assert not {"torch", "triton"} & set(modules), (
        "where they are installed, a plain run needs none"
    )
    ours = [m for m in modules if m.split(".")[0] == "mini_vllm"]
    loaded = {m.removeprefix("mini_vllm").lstrip(".") for m in ours}
    named = {""} | CORE | PACKAGES | BESIDE
    assert loaded - named == set(), "loaded by every run, and not named here"
    assert named - loaded == set(), "named here, and not loaded any more: delete the name"
    assert len(loaded) <= MOST
