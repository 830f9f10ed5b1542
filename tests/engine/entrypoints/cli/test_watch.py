"""`--watch`: what it draws, that text in it is only text, and what it does without a terminal."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest

from mini_vllm import LLMEngine
from mini_vllm.entrypoints.cli import main
from mini_vllm.entrypoints.cli.watch import Watch, check_watch, printable
from mini_vllm.trace import TraceRecorder
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import greedy, write_checkpoint

ROOT = Path(__file__).resolve().parents[4]
HOSTILE = "[red]x[/red]\x1b]0;title\x07\x1b[2J\u202e\r\nend"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    """Without the sequences that set colours and move the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def watched(
    monkeypatch: pytest.MonkeyPatch, columns: int = 100, lines: int = 30
) -> tuple[LLMEngine, list[str]]:
    """A run with shared prefixes, chunks and preemption: the engine, and a picture a step."""
    pytest.importorskip("rich", reason="rich is not installed")
    from rich.console import Console

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("TERM", "xterm")
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    recorder = TraceRecorder(engine)
    prompts = {"a": list(range(10, 30)), HOSTILE: [*range(10, 26), 5, 5], "c": [7] * 9}
    for request_id, prompt in prompts.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    out, pictures = Terminal(), []
    with Watch(engine, recorder, 0.0, out) as watch:
        while engine.has_unfinished_requests():
            engine.step()
            watch.show()
            # Not on the console that is live: it adds what takes the last picture away.
            still = Console(file=io.StringIO(), width=columns, height=lines, highlight=False)
            still.print(watch.picture())
            pictures.append(still.file.getvalue())
    assert "\x1b]0" not in out.getvalue(), "the terminal's title was set"
    assert "[2J" not in out.getvalue(), "the screen was cleared"
    return engine, pictures


def test_a_picture_has_batch_queue_blocks_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pictures = watched(monkeypatch)
    lines = pictures[0].splitlines()
    assert lines[0].startswith("step 1  12 of 12 tokens  running 1 of 4  waiting 2  ")
    assert re.match(r"A a +▓+░+ prefill 12", lines[1])
    assert lines[2].startswith("waiting: ")
    assert lines[2].endswith("the token budget of 12 is used up")
    assert lines[3].startswith("blocks: 3 of 17 in use, 0 shared")
    assert lines[4] == "AAA" + "_" * 14
    second = pictures[1].splitlines()
    assert second[1].startswith("A a ")
    assert "prefill 2, 16 cached" in second[2]
    assert second[-1].startswith("2222AB")
    assert any("preempted: a needs 1 more block and 0 are free" in p for p in pictures)
    assert "·" in pictures[-1].splitlines()[-1], "free blocks that are still cached"


def test_text_from_outside_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pictures = watched(monkeypatch)
    assert any("B [red]x" in picture for picture in pictures), "markup is shown, not obeyed"
    for picture in pictures:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", picture)
    shown = printable(HOSTILE)
    assert shown == "[red]x[/red]·]0;title··[2J··↵end"
    assert printable("naïve 日本 — ok") == "naïve 日本 — ok"


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (200, 60)])
def test_it_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, lines: int) -> None:
    _, pictures = watched(monkeypatch, columns, lines)
    for picture in pictures:
        assert max(map(len, picture.splitlines())) <= columns
        assert len(picture.splitlines()) <= max(lines, 12)


def test_without_a_terminal_it_goes_on_without(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    model = str(write_checkpoint(tmp_path))
    flags = ("--model", model, "--max-tokens", "4")
    assert main(["generate", "Hello", *flags]) == 0
    expected = capsys.readouterr().out
    assert main(["generate", "Hello", "--watch", *flags]) == 0
    out, err = capsys.readouterr()
    assert out == expected
    assert err == "mini-vllm: --watch needs a terminal; going on without it\n"


def test_what_is_missing_or_wrong_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["generate", "Hello", "--watch"]) == 2
    assert "mini-vllm: --watch needs rich, of the extra 'watch'" in capsys.readouterr().err
    for delay in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="--watch-delay"):
            check_watch(delay, Terminal())


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here")
def test_in_a_real_terminal(tmp_path: Path) -> None:
    """The command in a pseudo-terminal: pictures while it runs, then the completions."""
    pytest.importorskip("rich", reason="rich is not installed")
    import pty

    model = str(write_checkpoint(tmp_path))
    argv = ["generate", "[b]Hello", "You", "--watch", "--watch-delay", "0.001", "--max-tokens", "6"]
    command = [
        sys.executable,
        "-m",
        "mini_vllm.entrypoints.cli",
        *argv,
        "--ignore-eos",
        "--model",
        model,
    ]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        environment = os.environ | {
            "TERM": "xterm",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "90",
            "LINES": "24",
        }
        os.execve(sys.executable, command, environment)
    said = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how Linux ends a terminal
            break
        if not chunk:
            break
        said += chunk
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    text = plain(said.decode(errors="replace"))
    assert os.waitstatus_to_exitcode(status) == 0, text[-500:]
    assert text.count("step ") >= 6
    after = text[text.rindex("blocks:") :]
    assert "--- [b]Hello" in after, "the completions come when the pictures are over"
    assert "--- You" in after
