"""Lab 05-03: what its page shows, and the same asked of vLLM's own config, live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_05_03_vllm.py

holds a learner's own ladder against that. Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_module
from mini_vllm.cudagraph import CudagraphDispatcher, CUDAGraphMode
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

LAB = ROOT / "phase-05-cuda-graphs" / "labs" / "lab-03-capture-sizes"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"


@pytest.fixture(scope="module")
def in_vllm() -> ModuleType:
    return load_module(LAB / "in_vllm.py", "lab_05_03_in_vllm_held")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    named = {"solution": LAB / "solution.py", "starter": LAB / "starter.py"}
    return load_module(named.get(CHOICE, Path(CHOICE)), "lab_05_03_held")


def test_the_page_shows_what_the_scripts_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every output on the page, printed again."""
    page = (LAB / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- output: python (.*?) \| .*-->\n```text\n([^`]*)```", page)
    assert len(blocks) == page.count("<!-- output:") > 0
    for command, shown in blocks:
        script, *words = shlex.split(command)
        monkeypatch.setattr(sys, "argv", [script, *words])
        load_module(ROOT / script, "lab_05_03_script").main()
        assert capsys.readouterr().out == shown, command


def test_the_whole_config_says_what_mini_vllm_says(in_vllm: ModuleType, lab: ModuleType) -> None:
    """Each recorded case: the ladder, the captures, and how the steps run."""
    for name, answer in in_vllm.recorded().items():
        settings = {"max_num_batched_tokens": 8192, **in_vllm.CASES[name]}
        drafts, eager = settings.pop("drafts", 0), settings.pop("enforce_eager", False)
        if drafts:
            settings["uniform_decode_query_len"] = 1 + drafts
        if "error" in answer:
            with pytest.raises(ValueError, match=str(settings["max_cudagraph_capture_size"])):
                lab.capture_sizes(**settings)
            continue
        if not drafts:  # those are rounded up later
            assert answer["sizes"] == ([] if eager else lab.capture_sizes(**settings)), name
        mode = CUDAGraphMode[answer["mode"]]
        made = CudagraphDispatcher(mode, answer["sizes"], settings["max_num_seqs"], 1 + drafts)
        keys = {mode.name: len(keys) for mode, keys in made.cudagraph_keys.items()}
        assert answer["captures"] == keys, name
        for num_tokens, uniform, ran_as, padded in answer["runs"]:
            found, key = made.dispatch(num_tokens, uniform)
            assert (ran_as, padded) == (found.name, key.num_tokens), (name, num_tokens)


@pytest.mark.vllm
def test_vllm_says_it_again(in_vllm: ModuleType, tmp_path: Path) -> None:
    """A whole `VllmConfig` for each case, on the stand-in: the record, to the letter."""
    output_of(
        "-c",
        f"import pathlib, sys; sys.argv = ['in_vllm.py', '--record']\n"
        f"from course.learner.labs import load_module\n"
        f"script = load_module(pathlib.Path({str(LAB / 'in_vllm.py')!r}), 'asked_again')\n"
        f"script.RECORD = pathlib.Path({str(tmp_path / 'asked.json')!r})\n"
        "script.main()",
    )
    now = json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))["cases"]
    kept = json.loads(in_vllm.RECORD.read_text(encoding="utf-8"))["cases"]
    assert now == kept, f"record it again: {in_vllm.COMMAND}"
