"""Quantised checkpoints under CUDA graphs: the same tokens in every mode as without graphs.

A quantised layer does more than a product: it unpacks words, finds a scale for each row, gathers columns. All
of that has to be recorded, and none of it may look at a row of padding. Without a GPU torch's graphs are the
stand-in's, which refuses what a GPU could not capture.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.model_loader import load_model
from mini_vllm.worker.graph_forward import NumpyGraphForward
from tests.engine.gpu.test_gpu_cudagraph import DEVICES, MODES, check_triton, watched
from tests.engine.helpers.engine.engine_helpers import run
from tests.engine.helpers.models.model_helpers import write_checkpoint
from tests.engine.helpers.quantization.quantized_helpers import cases, write_quantized

METHODS = ["int4-g128", "w8a8"]
LAYOUTS = ["w4a16-asym", "w4a16-actorder", "w8a16", "fp8", "awq"]
"""What `METHODS` do not show: zero points, columns out of order, 8 bits in words, FP8, and AWQ's file."""
PROMPTS = [[3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [9, 40], [30, 31, 32, 33, 34]]
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "block_size": 4, "num_gpu_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 8,
    "cudagraph_capture_sizes": [1, 2, 4, 8],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint, with biases, whose layers groups of 128 divide."""
    place = tmp_path_factory.mktemp("quantized")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
    write_checkpoint(place / "plain", seed=3, attention_bias=True, **sizes)  # no near ties
    return place


def checkpoint(folder: Path, name: str) -> Path:
    """The folder's checkpoint in one of the formats, made once."""
    if not (folder / name).exists():
        if name in METHODS:
            quantize_checkpoint(folder / "plain", folder / name, name)
        else:
            write_quantized(folder / "plain", folder / name, cases(128)[name])
    return folder / name


def check_modes(mode: str, ran: Counter[str]) -> None:
    """Prompts come in chunks beside decodes, so both halves of a mode have had steps."""
    expected = {"FULL_DECODE_ONLY": {"NONE", "FULL"}, "FULL_AND_PIECEWISE": {"FULL", "PIECEWISE"}}
    assert ran.keys() == expected.get(mode, {mode}), ran


@pytest.mark.parametrize("name", METHODS)
def test_numpys_tokens_are_the_same_in_every_mode(name: str, folder: Path) -> None:
    """With NaN in all memory of graphs before each step: what a row of padding holds is scaled, too."""
    saved = checkpoint(folder, name)
    expected = run(LLMEngine(load_model(saved), EngineConfig(**SETTINGS)), PROMPTS, PARAMS)
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    for mode in MODES:
        engine = LLMEngine(load_model(saved), EngineConfig(cudagraph_mode=mode, **SETTINGS))
        forward = engine.engine_core.model_runner.forward
        assert isinstance(forward, NumpyGraphForward)
        ran = watched(engine)

        def poison(step: Any, forward: NumpyGraphForward = forward) -> None:
            for array in forward.pool._arrays.values():
                array[:] = np.nan

        engine.engine_core.step_observers.append(poison)
        assert run(engine, PROMPTS, PARAMS) == expected, mode
        check_modes(mode, ran)


@pytest.mark.torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "modes"),
    [(name, MODES) for name in METHODS] + [(name, ["FULL_AND_PIECEWISE"]) for name in LAYOUTS],
)
def test_torch_captures_every_layer(name: str, modes: list[str], folder: Path, device: str) -> None:
    """No rule of a capture is broken, and the tokens are numpy's, who has no graphs here."""
    from mini_vllm.gpu.backend import TorchAttention
    from mini_vllm.gpu.graph_standin import watch
    from tests.engine.helpers.gpu.torch_helpers import torch_model

    saved = checkpoint(folder, name)
    expected = run(LLMEngine(load_model(saved), EngineConfig(**SETTINGS)), PROMPTS, PARAMS)
    attention: Any = TorchAttention()
    model = load_model(saved, attention, torch_model(device))
    for mode in modes:
        config = EngineConfig(attention="torch", cudagraph_mode=mode, **SETTINGS)
        with watch():
            engine = LLMEngine(model, config)
            ran = watched(engine)
            assert run(engine, PROMPTS, PARAMS) == expected, mode
        # TorchAttention lowers FULL: its mixed batches have no fixed shape.
        check_modes("FULL_AND_PIECEWISE" if mode == "FULL" else mode, ran)


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_of_packed_weights_is_captured(tmp_path: Path, device: str) -> None:
    """`wna16.py` inside of graphs, of mixed batches too; one small layer, for the interpreter's sake."""
    write_checkpoint(tmp_path / "plain", seed=3, num_hidden_layers=1)
    quantize_checkpoint(tmp_path / "plain", tmp_path / "int4", "int4-g16")
    check_triton(device, str(tmp_path / "int4"))
