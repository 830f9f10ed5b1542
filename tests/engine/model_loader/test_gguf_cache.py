"""Where converted models are kept: what a killed conversion, several at once and a changed file leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.model_loader import find_model, load_weights
from tests.engine.helpers.models.gguf_helpers import make_weights, write_gguf
from tests.engine.helpers.thorough import either

pytest.importorskip("gguf")
pytest.importorskip("filelock")

ROOT = Path(__file__).resolve().parents[3]

CONVERTER = """
import json, os, signal, sys
import filelock, gguf
import mini_vllm.model_loader.gguf.convert as convert
from mini_vllm.model_loader import find_model

seen = 0
def run(file, at):
    def count(event, args):
        global seen
        cache = os.environ["MINI_VLLM_CACHE"]
        of_cache = event in ("open", "os.rename", "os.mkdir") and str(args[0]).startswith(cache)
        if of_cache or event == "killme":
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    real = convert._floats
    def floats(tensor):
        sys.audit("killme")
        return real(tensor)
    convert._floats = floats
    print(json.dumps([str(find_model(file)), seen]), flush=True)

for line in sys.stdin:
    file, os.environ["MINI_VLLM_CACHE"], at = json.loads(line)
    child = os.fork()
    if not child:
        try:
            run(file, at)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


class Converter:
    """A process that has imported everything, and forks for each conversion: to start one takes longer."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONVERTER], env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, file: Path, cache: Path, at: int) -> tuple[int, Any]:
        """Exit code, and what it has printed: the model's folder, and the points that it came to."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(file), str(cache), at]) + "\n")
        self.process.stdin.flush()
        said = None
        while isinstance(line := json.loads(self.process.stdout.readline()), list):
            said = line
        return line, said


@pytest.fixture
def converter() -> Iterator[Converter]:
    made = Converter()
    with made.process:
        yield made
        assert made.process.stdin is not None
        made.process.stdin.close()


@pytest.mark.skipif(sys.platform == "win32", reason="ends a process with SIGKILL")
def test_a_conversion_killed_anywhere_leaves_nothing_half_made(
    converter: Converter, tmp_path: Path
) -> None:
    """At points from the first file to the last move; and the next one is whole."""
    points_to_try = either(5, 20)
    raw, weights = make_weights()
    write_gguf(tmp_path / "model.gguf", raw, weights)
    status, (folder, points) = converter.run(tmp_path / "model.gguf", tmp_path / "cache-0", 0)
    assert status == 0
    assert points >= 20
    wanted = {p.name: p.read_bytes() for p in Path(folder).iterdir()}
    killed = 0
    for at in np.linspace(1, points, points_to_try).astype(int).tolist():
        cache = tmp_path / f"cache-{at}"
        status, _ = converter.run(tmp_path / "model.gguf", cache, at)
        killed += status == -signal.SIGKILL
        for made in cache.glob("models/*"):
            if made.is_dir() and not made.name.endswith(".partial"):
                found = {p.name: p.read_bytes() for p in made.iterdir()}
                assert found == wanted, f"killed at point {at}, and half a model stands there"
                assert at == points, "it stands there before the last move"
    assert killed == points_to_try
    cache = next(p for p in tmp_path.glob("cache-*") if list(p.glob("models/*.partial")))
    _, (folder, _) = converter.run(tmp_path / "model.gguf", cache, 0)
    assert {p.name: p.read_bytes() for p in Path(folder).iterdir()} == wanted
    assert not list(cache.glob("models/*.partial")), "what was killed has been cleared away"


def test_several_processes_convert_once(tmp_path: Path) -> None:
    raw, weights = make_weights()
    write_gguf(tmp_path / "model.gguf", raw, weights)
    env = os.environ | {"MINI_VLLM_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    code = (
        "import sys; from mini_vllm.model_loader import find_model; print(find_model(sys.argv[1]))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "model.gguf")],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(either(2, 3))
    ]  # fmt: skip
    said = [process.communicate() for process in running]
    assert {process.returncode for process in running} == {0}
    assert len({out for out, _ in said}) == 1
    assert sum("converting" in err for _, err in said) == 1


def test_a_changed_file_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    folders = []
    for seed in (1.0, 2.0):
        raw, weights = make_weights()
        write_gguf(file, raw, {n: w * np.float32(seed) for n, w in weights.items()})
        os.utime(file, ns=(int(seed), int(seed)))  # a file system's clock may be coarse
        folders.append(find_model(file))
    assert folders[0] != folders[1]
    assert find_model(file) == folders[1]
    one, two = (json.loads((f / "config.json").read_text()) for f in folders)
    assert one == two
    first = "model.norm.weight"
    np.testing.assert_array_equal(
        2 * load_weights(folders[0])[first], load_weights(folders[1])[first]
    )
