"""A quantised model answers one prompt: a place for breakpoints in codes and scales.

    python phase-06-quantization/quant_drill.py [METHOD]

The shipped model is quantised into a folder that is thrown away afterwards, with 4 bits in groups of 32
where no method is named, and read again. Its KV cache keeps E4M3 codes. It stops before the step that
computes Noor's prompt of three tokens; one token more is decoded behind it. At the prompt of the debugger
`engine`, `linear` (the linear methods), `kv_cache` and `unpack_int32` are names. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib
import sys
import tempfile
from pathlib import Path

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization import kv_cache, linear
from mini_vllm.layers.quantization.pack import unpack_int32


def main(method: str = "int4-g32") -> None:
    with tempfile.TemporaryDirectory() as out:
        quantize_checkpoint(DEFAULT_MODEL, Path(out) / "small", method)
        engine = LLMEngine(
            str(Path(out) / "small"), EngineConfig(num_gpu_blocks=8, kv_cache_dtype="fp8")
        )
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        engine.add_request("noor", {"prompt_token_ids": [50, 51, 52]}, params)
        breakpoint()  # noqa: T100
        while engine.has_unfinished_requests():
            engine.step()
    assert linear
    assert kv_cache
    assert unpack_int32  # names for the debugger


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main(*sys.argv[1:2])
