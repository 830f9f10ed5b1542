"""Twelve scripts as people write them for vLLM, unchanged but for the import, on both engines."""

from __future__ import annotations

import importlib.util

import pytest

from course.parity.tokens_run import run_worker
from tests.engine.helpers.real_vllm.run_snippets import NAMES, run, source

NEED_JINJA2 = {"02_chat", "11_chat_template"}


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What the scripts print here, for the comparison; each runs once."""
    return {}


def _run_here(name: str, printed: dict[str, str]) -> str:
    if name in NEED_JINJA2 and importlib.util.find_spec("jinja2") is None:
        pytest.skip("chat templates need jinja2, of the extra serve")
    if name not in printed:
        result = run(name, "mini_vllm")
        assert result["failure"] is None, result["failure"]
        printed[name] = result["printed"]
    return printed[name]


def test_the_scripts_are_vllms_but_for_the_import() -> None:
    assert len(NAMES) == 12
    for name in NAMES:
        theirs, ours = source(name, "vllm"), source(name, "mini_vllm")
        assert ours != theirs
        assert "mini_vllm" not in theirs.replace("mini_vllm/checkpoints", "")
        assert ours.replace("from mini_vllm", "from vllm") == theirs


@pytest.mark.parametrize("name", NAMES)
def test_the_script_runs_on_mini_vllm(name: str, printed: dict[str, str]) -> None:
    assert _run_here(name, printed).strip()


@pytest.mark.vllm
def test_the_scripts_print_the_same_on_vllm(printed: dict[str, str]) -> None:
    answers = run_worker("tests.engine.helpers.real_vllm.run_snippets", ["vllm"], NAMES)
    failed = [f"{one['name']}: {one['failure']}" for one in answers if one["failure"]]
    assert not failed, "vLLM itself fails:\n" + "\n".join(failed)
    for one in answers:
        assert _run_here(one["name"], printed) == one["printed"], one["name"]
