"""Lab 04-04: its matrix and its captured lines, and the same asked of the real vLLM, live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_04_04_vllm.py

holds a learner's own `select` against what vLLM's code says here and now. Without LAB_IMPL the reference is
held.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

LAB = ROOT / "phase-04-attention-backends" / "labs" / "lab-04-backend-selection"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    return load_module(LAB / "matrix.py", "lab_04_04_matrix")


@pytest.fixture(scope="module")
def overrides() -> ModuleType:
    return load_module(LAB / "overrides.py", "lab_04_04_overrides")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    named = {"solution": LAB / "solution.py", "starter": LAB / "starter.py"}
    return load_module(named.get(CHOICE, Path(CHOICE)), "lab_04_04_held")


def test_the_matrix_is_of_these_questions(matrix: ModuleType) -> None:
    """It says how it was made, on these machines, and every question of matrix.py is in it."""
    kept = matrix.read_matrix()
    assert kept["made"].keys() == {"command", "date", "hardware", "versions"}
    assert kept["made"]["command"] == matrix.COMMAND
    assert kept["made"]["versions"]["vllm"] == "0.22.1"
    machines = {
        one["name"]: (*one["capability"], *list(one.values())[2:]) for one in kept["machines"]
    }
    assert machines == {name: (*m.capability, *m[1:]) for name, m in matrix.MACHINES.items()}
    asked = list(matrix.questions())
    cells = [(name, config, override) for name, config, override, _ in matrix.cells(kept)]
    assert len(cells) == len(set(cells)) == len(asked)
    assert set(cells) == set(asked), f"save it again: {matrix.COMMAND}"


def test_the_facts_name_everybody(matrix: ModuleType) -> None:
    """All members of vLLM's enum, and every candidate, and each of vLLM's reasons in the facts' words."""
    kept, facts = matrix.read_matrix(), matrix.facts
    assert sorted(kept["names"]) == sorted((*facts.BACKENDS, *facts.OTHERS))
    assert {name for order in kept["orders"] for name in order} == set(facts.BACKENDS)
    words = {value for value in vars(facts).values() if isinstance(value, str)}
    words |= set(facts.ATTN_TYPE.values())
    assert {reason for reasons in kept["reasons"] for reason in reasons} <= words


def test_what_is_kept_names_no_place() -> None:
    """Neither folders nor addresses of the machine it was made on."""
    for name in ("matrix.json", "overrides.json"):
        text = (LAB / name).read_text(encoding="utf-8")
        for word in (str(Path.home()), str(ROOT), "/tmp/", "127.0.0.1"):
            assert word not in text, (name, word)


def test_the_captured_lines_are_of_these_cases(overrides: ModuleType) -> None:
    """Each case of overrides.py, in its order, made by its command."""
    kept = json.loads(overrides.RECORD.read_text(encoding="utf-8"))
    assert kept["made"]["command"] == overrides.COMMAND
    assert kept["made"]["versions"]["vllm"] == "0.22.1"
    assert [one["name"] for one in kept["gpus"]] == [case[0] for case in overrides.GPU_CASES]
    assert [one["name"] for one in kept["cpu"]] == [case[0] for case in overrides.CPU_CASES]


def test_what_the_page_says_of_the_cpu(overrides: ModuleType) -> None:
    """Whatever is asked for, the same backend gives the same answer."""
    kept = json.loads(overrides.RECORD.read_text(encoding="utf-8"))["cpu"]
    started = [(one["backend"], one["answer"]) for one in kept if "backend" in one]
    assert len(started) == 4
    assert started == [started[0]] * 4
    assert started[0][0] == "CPU_ATTN"


def test_the_page_shows_what_is_kept(
    matrix: ModuleType,
    overrides: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every output on the page, printed again from matrix.json and overrides.json."""
    page = (LAB / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- output: python (.*?) \| .*-->\n```text\n([^`]*)```", page)
    assert len(blocks) == page.count("<!-- output:")
    for command, shown in blocks:
        script, *words = shlex.split(command)
        monkeypatch.setattr(sys, "argv", [script, *words])
        {"matrix.py": matrix, "overrides.py": overrides}[Path(script).name].main()
        assert capsys.readouterr().out == shown, command


@pytest.mark.vllm
def test_every_cell_is_vllms(matrix: ModuleType, lab: ModuleType, tmp_path: Path) -> None:
    """vLLM's selection code, asked again: the committed matrix, and what `select` says, cell by cell."""
    output_of(LAB / "matrix.py", "--save", tmp_path / "matrix.json")
    now, kept = matrix.read_matrix(tmp_path / "matrix.json"), matrix.read_matrix()
    for name, config, override, theirs in matrix.cells(now):
        yours = matrix.predicted(lab, matrix.MACHINES[name], config, override)
        assert matrix.same(theirs, yours), (name, config, override, theirs, yours)
    for each in (now, kept):
        del each["made"]
    assert now == kept, f"save it again: {matrix.COMMAND}"


@pytest.mark.vllm
def test_the_captured_lines_are_vllms(overrides: ModuleType, tmp_path: Path) -> None:
    """Every case of overrides.py again: the same lines, errors, backends and tokens."""
    import torch

    output_of(LAB / "overrides.py", "--record", tmp_path / "overrides.json")
    now, kept = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (tmp_path / "overrides.json", overrides.RECORD)
    )
    assert now["gpus"] == kept["gpus"], f"record it again: {overrides.COMMAND}"
    if not torch.cuda.is_available():  # there the last ones run on the GPU
        assert now["cpu"] == kept["cpu"], f"record it again: {overrides.COMMAND}"


@pytest.mark.vllm
def test_what_vllms_layers_tell(lab: ModuleType) -> None:
    """`Attention` and `MLAAttention`, built on the stand-in: what they ask with is what `inputs` says."""
    out = output_of(ROOT / "tests/engine/helpers/real_vllm/layers_asking.py")
    [heard] = [json.loads(line[4:]) for line in out.splitlines() if line.startswith("LAB ")]
    layer, server = lab.facts.Layer, lab.facts.Server
    latent: dict[str, Any] = {"num_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    asked = [
        (layer(128, 40, 10, sliding_window=4096, logits_soft_cap=50.0), server()),
        (layer(128, 32), server(block_size=16)),
        (
            layer(64, 32, 8, sinks=True),
            server("float16", "fp8_e5m2", use_non_causal=True, batch_invariant=True),
        ),
        (layer(80, 8, attn_type="encoder_only"), server("float16")),
        (layer(192, **latent), server(kv_cache_dtype="fp8", block_size=64)),
        (layer(192, sparse=True, **latent), server(use_non_causal=True, batch_invariant=True)),
    ]
    assert [lab.inputs(*one)._asdict() for one in asked] == heard


STAND_IN_CHILD = """
import sys
from pathlib import Path
from course.learner.labs import load_module
load_module(Path(sys.argv[1]), "cuda_stand_in_tested").stand_in()
maps = Path("/proc/self/maps")
text = maps.read_text() if maps.exists() else ""
print([line for line in text.splitlines() if "/vllm/_C" in line], "vllm._C" in sys.modules)
"""


@pytest.mark.vllm
def test_the_stand_in_loads_no_compiled_code_of_the_cpu_build() -> None:
    """It has AVX-512 instructions in it, and a processor without them ends the process."""
    assert output_of("-c", STAND_IN_CHILD, LAB / "cuda_stand_in.py").splitlines()[-1] == "[] True"
