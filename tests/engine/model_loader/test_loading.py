"""How weights come into memory: one by one, once, and said beforehand where they do not fit."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mini_vllm.config.model import CheckpointError
from mini_vllm.model_loader import LlamaConfig, expected_tensors, load_model, progress
from mini_vllm.model_loader.loader import WeightsOnDemand, open_weights
from mini_vllm.model_loader.safetensors_file import StoredTensor
from tests.engine.helpers.models.model_helpers import (
    CONFIG,
    to_bfloat16,
    write_checkpoint,
    write_safetensors,
)

ROOT = Path(__file__).resolve().parents[3]
PEAK = """
import sys
from pathlib import Path
from mini_vllm.model_loader import load_model

def kib(name):  # not getrusage's ru_maxrss: that begins with what the parent process had
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

small, large = sys.argv[1:]
load_model(small)  # what Python, numpy and a first model take
before = kib("VmRSS")
model = load_model(large)
print(1024 * (kib("VmHWM") - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_peak_is_the_float32_weights_and_a_quarter(tmp_path: Path) -> None:
    """Of a bfloat16 folder with a large vocabulary, whose head is its embedding."""
    write_checkpoint(tmp_path / "small")
    raw = CONFIG | {
        "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 50_000, "num_hidden_layers": 8,
    }  # fmt: skip
    shapes = expected_tensors(LlamaConfig.from_dict(raw))
    size = sum(4 * math.prod(shape) for shape in shapes.values())
    ones = 0x3F80  # nothing is computed with them, and to draw them takes longer than to load them
    stored = {name: ("BF16", np.full(shape, ones, np.uint16)) for name, shape in shapes.items()}
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps(raw))
    write_safetensors(tmp_path / "large" / "model.safetensors", stored)
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "small", tmp_path / "large"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(ran.stdout) <= 1.25 * size, f"{int(ran.stdout):,} bytes for {size:,} of weights"


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    model = load_model(tmp_path)
    assert np.shares_memory(model.embed_tokens, model.lm_head.weight)


def test_a_stored_head_is_compared_with_the_embedding_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never whole, in whatever types the two are stored; the last number counts, and 0 is -0."""
    weights = write_checkpoint(tmp_path)
    monkeypatch.setattr("mini_vllm.model_loader.safetensors_file.PIECE", 100)
    read: list[int] = []
    kept = StoredTensor.pieces

    def pieces(self: StoredTensor) -> Iterator[np.ndarray]:
        for piece in kept(self):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(StoredTensor, "pieces", pieces)
    half = to_bfloat16(weights["model.embed_tokens.weight"])
    embedding = (half.astype(np.uint32) << 16).view(np.float32)
    embedding[0, 0], half[0, 0] = 0.0, 0x8000
    rest = {n: ("F32", w) for n, w in weights.items()} | {
        "model.embed_tokens.weight": ("F32", embedding)
    }
    path = tmp_path / "model.safetensors"
    write_safetensors(path, rest | {"lm_head.weight": ("BF16", half)})
    load_model(tmp_path)
    assert max(read) == 100
    assert sum(read) == 2 * half.size
    half[-1, -1] ^= 1
    write_safetensors(path, rest | {"lm_head.weight": ("BF16", half)})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        load_model(tmp_path)
    write_safetensors(path, rest | {"lm_head.weight": ("BF16", half[1:])})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        load_model(tmp_path)


def test_a_tensor_in_use_is_read_once(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    said: list[tuple[int, int]] = []
    weights = WeightsOnDemand(open_weights(tmp_path), lambda done, of: said.append((done, of)))
    first = weights["model.norm.weight"]
    assert weights["model.norm.weight"] is first
    assert len(said) == 1
    for name in weights:
        weights[name]
    assert said[-1][0] == said[-1][1] == sum(t.nbytes for t in open_weights(tmp_path).values())


def test_a_model_reads_each_tensor_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path)
    read: list[str] = []
    kept = StoredTensor.read

    def note(self: StoredTensor) -> np.ndarray:
        read.append(self.name)
        return kept(self)

    monkeypatch.setattr(StoredTensor, "read", note)
    load_model(tmp_path)
    assert sorted(read) == sorted(open_weights(tmp_path))


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path)
    monkeypatch.setattr("mini_vllm.model_loader.loader.available_memory", lambda: 20_000)
    monkeypatch.setattr(
        "mini_vllm.model_loader.safetensors_file.StoredTensor.read",
        lambda self: pytest.fail("it was read"),
    )
    with pytest.raises(CheckpointError, match=r"GiB as float32.*GiB of memory are free"):
        load_model(tmp_path)


def test_a_file_that_gets_shorter_meanwhile(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    stored = open_weights(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    last = max(stored.values(), key=lambda tensor: tensor.start)
    with pytest.raises(CheckpointError, match=rf"ends after \d+ of the .*{last.name}"):
        last.read()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_named(bad: float, tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 5] = bad
    if bad == np.inf:
        weights[name][4, 5] = -np.inf  # their sum is no number either
    write_safetensors(tmp_path / "model.safetensors", {n: ("F32", w) for n, w in weights.items()})
    with pytest.raises(CheckpointError, match=rf"{name}.*\[3, 5\].*finite"):
        load_model(tmp_path)


def test_large_numbers_are_finite(tmp_path: Path) -> None:
    """Their sum overflows, and they are none the worse for it."""
    weights = write_checkpoint(tmp_path)
    weights["model.layers.1.mlp.up_proj.weight"][:] = 3e38
    write_safetensors(tmp_path / "model.safetensors", {n: ("F32", w) for n, w in weights.items()})
    load_model(tmp_path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large = 2 * progress.SHOWN_FROM
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress.loading_bar(large) is None
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert progress.loading_bar(progress.SHOWN_FROM - 1) is None
    bar = progress.loading_bar(large)
    assert bar is not None
    bar(large // 2, large)
    bar(large, large)
    bar(large, large)
    half, full = screen.getvalue().split("\r")[1:]
    assert half.count("#") == 15
    assert "200 of 400 MiB" in half
    assert full.count("#") == 30
    assert full.endswith("\n")
