"""What nobody should hand in, from tables: one line that names file, field and rule; never a traceback.

The tables stand in `odd_inputs/`; `odd_case.py` says what a row may hold. To add a case, add a line.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from odd_case import GOLDEN, SCENARIO, content, good_trace, put, rows, value_of

from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.entrypoints.cli import main
from mini_vllm.utils.untrusted import one_line
from tests.engine.helpers.engine.text_helpers import write_checkpoint

SECONDS = 30
"""Far more than any case takes: what is still running then, hangs."""
SPACE = 3 * 1024**3
"""Bytes of address space beyond today's: a mistake must not take the machine's memory."""
LONGEST = 1000
USUAL = ("generate", "Hi", "--max-tokens", "2", "--num-gpu-blocks", "40", "--model", "{model}")


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A case that hangs fails, and ends."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still running after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True, scope="module")
def little_memory() -> Iterator[None]:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/statm")
    if status.exists():
        now = int(status.read_text().split()[0]) * resource.getpagesize()
        if now > 4 * 1024**3:  # torch is in this process, and nothing is small beside it
            pytest.skip(f"this process spans {now / 1024**3:.0f} GiB; run this file by itself")
        resource.setrlimit(resource.RLIMIT_AS, (now + SPACE, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("good") / "model")


@pytest.fixture(scope="module")
def _places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("odd")
    return (folder / str(i) for i in itertools.count())


@pytest.fixture
def place(_places: Iterator[Path]) -> Path:
    """A folder of this test's own: `tmp_path`, of which a thousand take their time."""
    folder = next(_places)
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def links(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("links")


@pytest.fixture
def model(good: Path, links: Path) -> Path:
    """The good checkpoint, file by file linked, for the test to change."""
    there = {path.name for path in links.iterdir()}
    for name in there - {file.name for file in good.iterdir()}:
        remove(links / name)
    for file in good.iterdir():
        link = links / file.name
        if link.is_symlink() and link.readlink() == file:
            continue
        remove(link)
        link.symlink_to(file)
    return links


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def check_packages(row: dict[str, Any]) -> None:
    for key, wanted in (("needs", True), ("lacks", False)):
        for package in row.get(key, []):
            if (importlib.util.find_spec(package) is not None) is not wanted:
                pytest.skip(f"{key} {package}")


def command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        status = main(list(argv))
    except SystemExit as stop:  # argparse leaves this way
        status = int(stop.code or 0)
    return status, *capsys.readouterr()


def check(row: dict[str, Any], status: int, err: str) -> str:
    """Status and words as the row says; the last line of the errors."""
    runs = row.get("runs", False)
    assert status == row.get("status", 0 if runs else 2), err[-2000:]
    assert "Traceback" not in err
    lines = err.split("\n")[:-1]
    assert len(lines) == row.get("lines", 0 if runs else 1), err[-2000:]
    for line in lines:
        assert line.startswith("mini-vllm: "), line[:200]
        assert len(line) <= LONGEST, f"a line of {len(line)} characters"
    check_words(row, err)
    return lines[-1] if lines else ""


def check_words(row: dict[str, Any], message: str) -> None:
    for word in row.get("says", ()):
        assert word in message, f"the message does not name {word!r}: {message[:1000]}"


def run_row(row: dict[str, Any], capsys: pytest.CaptureFixture[str], **places: Path | str) -> str:
    argv = [
        text.format(**places) if "{" in text and len(text) < 50 else text
        for text in map(value_of, row.get("argv", USUAL))
    ]
    status, _, err = command(capsys, *argv)
    return check(row, status, err)


# -- checkpoints ------------------------------------------------------------------------------------

JSON_FILES = {
    "config": "config.json",
    "generation_config": "generation_config.json",
    "tokenizer": "tokenizer.json",
    "tokenizer_config": "tokenizer_config.json",
    "index": "model.safetensors.index.json",
}
CHECKPOINTS = [row for door in (*JSON_FILES, "files", "safetensors") for row in rows(door)]


@pytest.mark.parametrize("row", CHECKPOINTS)
def test_a_checkpoint(
    row: dict[str, Any], good: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = row.get("file", JSON_FILES.get(row["door"], "model.safetensors"))
    if row["door"] == "index":
        (model / "model.safetensors").rename(model / "one.safetensors")
        tensors = json.loads(_header(good / "model.safetensors")[1])
        whole = dict.fromkeys((t for t in tensors if t != "__metadata__"), "one.safetensors")
        before = json.dumps({"metadata": {}, "weight_map": whole}).encode()
    else:
        before = (good / name).read_bytes() if (good / name).exists() else b""
    if row["door"] == "safetensors" and "be" not in row:
        before = odd_weights(row, before)
    put(row, model / name, before)
    if row.get("runs"):
        run_row(row, capsys, model=model)
        return
    check_packages(row)
    with pytest.raises(ValueError) as caught:
        LLM(model, num_gpu_blocks=40)
    check_words(row, str(caught.value))
    if not row.get("python"):  # what only Python's `LLM` reads
        assert run_row(row, capsys, model=model) == f"mini-vllm: {one_line(str(caught.value))}"


def _header(path: Path) -> tuple[int, bytes, bytes]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return size, data[8 : 8 + size], data[8 + size :]


def odd_weights(row: dict[str, Any], data: bytes) -> bytes:
    """A safetensors file changed as the row says: its header's entries, its numbers, or its size.

    entry      [tensor, {key: value}]   changes keys of the header's entry
    rename     [tensor, name];  without: tensor;  copy: [tensor, name] under a second name
    fill       [tensor, index, value]   one weight
    header     text of the whole header;  length: what its first 8 bytes say;  tail: bytes behind
    """
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    if "entry" in row:
        header[row["entry"][0]] |= row["entry"][1]
    if "rename" in row:
        header[row["rename"][1]] = header.pop(row["rename"][0])
    if "copy" in row:
        header[row["copy"][1]] = header[row["copy"][0]]
    if "without" in row:
        del header[row["without"]]
    if "fill" in row:
        tensor, index, value = row["fill"]
        at = header[tensor]["data_offsets"][0] + 4 * index
        body[at : at + 4] = np.float32(value).tobytes()
    text = value_of(row["header"]) if "header" in row else json.dumps(header)
    raw = text.encode()
    length = row.get("length", len(raw))
    return struct.pack("<Q", length) + raw + bytes(body) + bytes(row.get("tail", 0))


# -- settings, as Python gives them -----------------------------------------------------------------


@pytest.mark.parametrize("row", rows("engine"))
def test_settings(row: dict[str, Any], good: Path) -> None:
    settings = value_of(row.get("settings"))
    if "params" in row:
        with pytest.raises((TypeError, ValueError)) as caught:
            SamplingParams(**value_of(row["params"])).verify(264)
    elif row.get("model"):  # it takes a model to see it
        with pytest.raises(ValueError) as caught:
            LLM(good, **settings)
    else:
        with pytest.raises(ValueError) as caught:
            EngineConfig(**settings)
    check_words(row, str(caught.value))
    assert len(str(caught.value)) < LONGEST


# -- the command line and files of prompts ------------------------------------------------------------


@pytest.mark.parametrize("row", rows("argv"))
def test_the_command_line(
    row: dict[str, Any],
    good: Path,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    (place / "scenario.json").write_text(json.dumps(SCENARIO))
    check_packages(row)
    if not row.get("process"):
        run_row(row, capsys, model=good, golden=str(GOLDEN))
        return
    argv = [text.replace("{model}", str(good)) for text in map(value_of, row["argv"])]
    status, err = as_process(argv, row)
    check(row, status, err)


def as_process(argv: list[str], row: dict[str, Any]) -> tuple[int, str]:
    """The command as a process of little memory. `stdin` (hex), `stdout` (a path, or "closed")."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1024**3, 1024**3))

    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    full = [sys.executable, "-m", "mini_vllm.entrypoints.cli", *argv]
    if row.get("stdout") == "closed":
        full = ["/bin/sh", "-c", 'exec "$0" "$@" >&-', *full]
    with Path(row.get("stdout", os.devnull).replace("closed", os.devnull)).open("wb") as out:
        done = subprocess.run(
            full,
            input=bytes.fromhex(row.get("stdin", "")),
            stdout=out,
            stderr=subprocess.PIPE,
            env=environment | row.get("env", {}),
            preexec_fn=limit,
            timeout=SECONDS - 5,
            check=False,
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("row", rows("prompts"))
def test_a_file_of_prompts(
    row: dict[str, Any], good: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / row.get("file", "prompts.jsonl")
    put(row, file, b'{"prompt": "one"}\n{"prompt": "two"}\n')
    argv = ("generate", "--prompts-file", str(file), "--json", "--model", str(good))
    status, out, err = command(capsys, *argv, "--max-tokens", "2", "--num-gpu-blocks", "40")
    check(row, status, err)
    if "answers" in row:  # the others run all the same
        prompts = [json.loads(line)["prompt"] for line in out.split("\n") if line]
        assert prompts == row["answers"]


# -- scenarios and traces -----------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*rows("scenario"), *rows("trace")])
def test_a_scenario_or_a_trace(
    row: dict[str, Any],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    base = row.get("base", "scenario")
    name, good = good_trace(base)
    file = Path(row.get("file", name))
    if "replace" in row:  # of a page: its text
        old, new = row["replace"]
        assert old in good.decode()
        good = good.decode().replace(old, value_of(new), 1).encode()
    put(row, file, good)
    argv = row.get("argv", ["trace", str(file), "-o", "out.html"])
    status, _, err = command(capsys, *argv)
    check(row, status, err)
    if not row.get("runs"):
        assert [p.name for p in Path().iterdir() if p != file] == [], "half an answer was written"


# -- the simulator ------------------------------------------------------------------------------------

GOOD_SIMULATED = {
    ".csv": b"prompt,output\n3,4\n",
    ".jsonl": b'{"prompt": "one", "output_tokens": 2}\n',
    ".json": json.dumps(
        {
            "name": "good", "source": "a test", "num_kv_tokens": 4096, "max_model_len": 1024,
            "host_s": {"steps": 1e-4}, "device_s": {"steps": 1e-3, "num_tokens": 1e-6},
        }
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("row", rows("simulate"))
def test_a_simulation(
    row: dict[str, Any],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    check_packages(row)
    file = Path(row.get("file", "lengths.csv"))
    put(row, file, GOOD_SIMULATED.get(file.suffix, b""))
    flag = "--cost" if file.suffix == ".json" else "--dataset"
    status, _, err = command(capsys, *map(value_of, row.get("argv", ["simulate", flag, str(file)])))
    check(row, status, err)


# -- quantised checkpoints ----------------------------------------------------------------------------

CALIBRATED = "quantize --method gptq --group-size 4 --calibration texts.json {model} out"


@pytest.mark.parametrize("row", rows("quantize"))
def test_quantising(
    row: dict[str, Any],
    good: Path,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    for folder in ("empty", "full"):
        Path(folder).mkdir()
    Path("file").write_text("a file")
    Path("full/mine").write_text("what stands there")
    Path("dangling").symlink_to("to nowhere")
    put(row, Path("texts.json"), json.dumps(["A block.", "The queue is empty."]).encode())
    before = sorted(map(str, Path().rglob("*")))
    run_row({"argv": CALIBRATED.split()} | row, capsys, model=good)
    if not row.get("runs"):
        assert sorted(map(str, Path().rglob("*"))) == before, "half a checkpoint was written"


# -- about the tables ---------------------------------------------------------------------------------


def test_there_are_many_and_each_is_once() -> None:
    doors = [*JSON_FILES, "files", "safetensors", "engine", "argv", "prompts", "scenario", "trace"]
    doors += ["simulate", "quantize"]
    table = [row.values[0] for door in doors for row in rows(door)]
    assert len(table) >= 330
    names = [(row["door"], row["name"]) for row in table]
    assert len(names) == len(set(names))
    for row in table:
        assert row.get("runs") or row.get("says"), f"{row['name']}: which words?"
        acts = {k: v for k, v in row.items() if k not in ("name", "says", "runs", "door")}
        assert acts, f"{row['name']} does nothing"
    bodies = [json.dumps({k: v for k, v in row.items() if k != "name"}) for row in table]
    assert len(bodies) == len(set(bodies)), "two rows are the same"


def test_a_good_input_is_one(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it every row could fail for another reason than its own."""
    run_row({"runs": True, "name": "good"}, capsys, model=good)
    assert content({}, b"as it was") == b"as it was"
    assert LLM(good).get_default_sampling_params() == SamplingParams()
