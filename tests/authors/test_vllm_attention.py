"""The deep dive of phase 04 shows what its scripts print of vLLM."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.patience import PATIENCE
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-04-attention-backends"
alone, paper, chat = load_scripts(PHASE, "vllm_attention", "vllm_on_paper", "long_chat")
SHOWN = topics_on(PHASE / "01-deep-dive.md")


def test_the_page_shows_or_names_every_topic() -> None:
    """What the cheatsheet's tables say as well, the page only names."""
    page = (PHASE / "01-deep-dive.md").read_text("utf-8")
    for script, module in (("vllm_attention", alone), ("vllm_on_paper", paper)):
        named = set(re.findall(rf"`python {PHASE.name}/{script}\.py (\w+)`", page))
        assert SHOWN[f"{script}.py"].keys() | named == module.TOPICS.keys()
        assert not SHOWN[f"{script}.py"].keys() & named


def test_the_guides_grids_are_those_that_vllm_launched() -> None:
    """`long_chat.programs` is a formula; the page shows what vLLM's launcher did."""
    cases = {"Ida": [1], "16 like her": [1] * 16, "17 like her": [1] * 17,
             "Ida and Jon": [1, 4096], "Jon": [4096]}  # fmt: skip
    launched = {}
    for line in SHOWN["vllm_attention.py"]["grid"]:
        if m := re.match(r"  (\w[\w ]*?)\s+\(([\d, ]+)\) ", line):
            launched[m[1]] = tuple(map(int, m[2].split(",")))
    assert launched == {name: chat.programs(lens) for name, lens in cases.items()}


def test_the_guides_table_is_lab_04_04s_matrix() -> None:
    """Six machines and five questions, out of what vLLM's selector answered there."""
    [lab] = (PHASE / "labs").glob("lab-04-*")
    matrix = json.loads((lab / "matrix.json").read_text("utf-8"))
    asked = {
        "16 bits": {"head_size": 128},
        "32 bits": {"head_size": 128, "dtype": "float32"},
        "fp8 cache": {"head_size": 128, "kv_cache_dtype": "fp8"},
        "attention sinks": {"head_size": 128, "has_sink": True},
        "MLA": {"head_size": 576, "use_mla": True, "num_heads": 128},
    }
    machines = [machine["name"] for machine in matrix["machines"][:6]]
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (PHASE / "00-guide.md").read_text("utf-8").splitlines()
        if line.startswith("| ") and ("| T4, 7.5 |" in line or line[2:].split(" |")[0] in asked)
    ]
    head, *rows = table
    columns = [[card.split(",")[0].strip() for card in cell.split(";")] for cell in head[1:]]
    assert sorted(card for cards in columns for card in cards) == sorted(machines)
    assert [row[0] for row in rows] == list(asked)
    plain = [row for row in matrix["rows"] if row.keys() == {"config", "answers"}]
    for name, *shown_names in rows:
        [found] = [row for row in plain if row["config"] == asked[name]]
        answers = [matrix["answers"][number][0] for number in found["answers"][:6]]
        by_machine = dict(zip(machines, answers, strict=True))
        for cards, backend in zip(columns, shown_names, strict=True):
            assert {by_machine[card] for card in cards} == {backend}, (name, cards)


def test_a_topic_that_there_is_not() -> None:
    done = subprocess.run(
        [sys.executable, PHASE / "vllm_attention.py", "tolt"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().startswith("no topic tolt; there are order, told,")


@pytest.mark.vllm
def test_how_many_names_have_code_behind_them() -> None:
    """The guide says how many; a member may be a mark, a place for somebody's own, or lead nowhere."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    modules = [kind.value.rpartition(".")[0] for kind in AttentionBackendEnum if kind.value]
    found = sum(importlib.util.find_spec(module) is not None for module in modules)
    assert f"attention backends, {found} of them implemented in 0.22.1" in (
        PHASE / "00-guide.md"
    ).read_text("utf-8")


@pytest.mark.vllm
@pytest.mark.parametrize("script", ["vllm_attention.py", "vllm_on_paper.py"])
def test_vllms_half(script: str) -> None:
    topics = SHOWN[script]
    printed = [line.rstrip() for line in output_of(PHASE / script, *topics).splitlines()]
    assert printed == [line for lines in topics.values() for line in lines]


@pytest.mark.vllm
def test_a_compiled_model_does_not_call_the_norms_own_kernel() -> None:
    """Lab 04-07: `custom_ops` is `none` by default, and `all` at `-O0` (the deep dive of phase 05)."""
    code = """
from unittest.mock import patch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers.layernorm import RMSNorm

for ops in ("none", "all"):
    config = VllmConfig(compilation_config=CompilationConfig(custom_ops=[ops]))
    with set_current_vllm_config(config), patch.object(custom_op, "current_platform") as platform:
        for name in ("is_rocm", "is_cpu", "is_tpu", "is_xpu", "is_out_of_tree"):
            getattr(platform, name).return_value = False
        print(ops, RMSNorm(8)._forward_method.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "forward" in line]  # beside vLLM's log
    assert said == ["none forward_native", "all forward_cuda"]
