"""What vLLM's own code makes of a step: sizes, keys, padding, modes. No GPU is needed.

    python phase-05-cuda-graphs/vllm_steps.py              all topics
    python phase-05-cuda-graphs/vllm_steps.py sizes        one

The functions are called as they stand, on a configuration that holds what they look at. Needs vLLM 0.22.1;
its CPU build will do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from vllm_topics import Say, tell, wanted

SETTINGS = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def configured(mode: str = "FULL_AND_PIECEWISE", max_num_seqs: int = 1024, **given: Any) -> Any:
    """A configuration as `-O2` makes it for a dense model, with its sizes set by vLLM."""
    from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
    from vllm.config.compilation import CompilationMode

    compilation = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=CUDAGraphMode[mode], **given
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=8192),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        speculative_config=None,
        lora_config=None,
        performance_mode="balanced",
    )
    compilation.set_splitting_ops_for_v1(all2all_backend="naive")
    VllmConfig._set_cudagraph_sizes(config)
    return config


def dispatcher(config: Any) -> Any:
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    made = CudagraphDispatcher(config)
    made.initialize_cudagraph_keys(config.compilation_config.cudagraph_mode, 1)
    return made


def shortened(values: list[int]) -> str:
    return f"{' '.join(map(str, values[:9]))} … {' '.join(map(str, values[-3:]))}"


def sizes(say: Say) -> None:
    """The capture sizes, and the keys that come of them."""
    for max_num_seqs in (1024, 256):
        config = configured(max_num_seqs=max_num_seqs)
        captured = config.compilation_config.cudagraph_capture_sizes
        keys = dispatcher(config).cudagraph_keys
        counts = ", ".join(f"{mode.name} {len(found)}" for mode, found in keys.items())
        say(
            f"max_num_seqs={max_num_seqs}: {len(captured)} sizes, {shortened(captured)}; keys: {counts}"
        )
    config = configured(max_cudagraph_capture_size=42)
    top = config.compilation_config.max_cudagraph_capture_size
    mode, _ = dispatcher(config).dispatch(42)
    say(f"max_cudagraph_capture_size=42: the largest is {top}, and 42 rows run as {mode.name}")


def captures(say: Say) -> None:
    """In which order the start captures."""
    for mode, keys in dispatcher(configured(max_num_seqs=256)).get_capture_descs():
        rows = [key.num_tokens for key in keys]
        say(
            f"{mode.name:10}{len(rows)} sizes: {rows[0]}, {rows[1]}, {rows[2]} … {rows[-2]}, {rows[-1]}"
        )
        say(f"{'':10}the first key: {str(keys[0]).split(', has_lora')[0]})")


def dispatch(say: Say) -> None:
    """How the steps of the guide run, and why."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    steps = {
        "Kim": [1],
        "33 people": [1] * 33,
        "3 people, and 3 last chunks of prompts": [1] * 6,
        "33 people and 200 rows of Lou's": [1] * 33 + [200],
        "33 people and 2,047 rows of Lou's": [1] * 33 + [2047],
    }
    found = dispatcher(configured())
    for name, rows in steps.items():
        uniform = GPUModelRunner._is_uniform_decode(max(rows), 1, sum(rows), len(rows))
        mode, key = found.dispatch(sum(rows), uniform_decode=uniform)
        say(
            f"{name:40}uniform {uniform!s:7}{mode.name:11}{key.num_tokens:5} rows, {key.num_reqs} requests"
        )
    mode, key = found.dispatch(33, uniform_decode=True, invalid_modes={CUDAGraphMode.FULL})
    say(
        f"{'33 people, their prefix read once':40}FULL excluded {mode.name:11}{key.num_tokens:5} rows"
    )


def padding(say: Say) -> None:
    """What the runner leaves in the slots of padded rows."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    slots = torch.tensor([84, 94, 89, 103], dtype=torch.int64)
    table = SimpleNamespace(slot_mapping=SimpleNamespace(gpu=slots))
    runner = SimpleNamespace(
        kv_cache_config=SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=None, layer_names=["layer"])]
        ),
        input_batch=SimpleNamespace(block_table=[table]),
        device="cpu",
    )
    say(f"in the buffer, three rows of this step and one of a step before: {slots.tolist()}")
    _, by_layer = GPUModelRunner._get_slot_mappings(runner, 4, 3, 3)
    say(
        f"what a layer is given:                                           {by_layer['layer'].tolist()}"
    )


TOPICS: dict[str, Callable[[Say], None]] = {
    "sizes": sizes,
    "captures": captures,
    "dispatch": dispatch,
    "padding": padding,
}


def main() -> None:
    os.environ |= SETTINGS
    for name in wanted(TOPICS):
        tell(name, TOPICS[name])


if __name__ == "__main__":
    main()
