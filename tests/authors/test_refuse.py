"""Importing what the lab builds: refused by name, in every form that a learner's file can give it."""

from __future__ import annotations

from pathlib import Path

import pytest
from course_helpers import Ran, add_lab, make_repository

from course.learner.grade import Job, run_jobs
from course.learner.labs import Lab, load_course, load_module
from course.learner.refuse import AnswerImportedError, refuse_the_answer

BUILDS = (
    'builds: ["mini_vllm.sample.ops:softmax", "mini_vllm.engine.llm_engine:LLMEngine.step", '
    '"mini_vllm.engine.engine_thread"]\n'
)
STARTER = '''\
"""Sampling."""


def softmax(logits):
    """Probabilities of each row of `logits`, [n, V] to [n, V]."""
    raise NotImplementedError
'''
SOLUTION = '''\
"""Sampling."""

import numpy as np

import mini_vllm.sample.sampler
from mini_vllm.sample.metadata import SamplingMetadata


class Sampler(mini_vllm.sample.sampler.Sampler):
    """What is inherited is given."""


def softmax(logits):
    """Probabilities of each row of `logits`, [n, V] to [n, V]."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
'''
TEST = '''\
import numpy as np


def test_rows_add_up_to_one(lab):
    """Every row of softmax adds up to 1."""
    assert np.allclose(lab.softmax(np.ones((1, 4))), 0.25), "four equal logits are a quarter each"


def test_shape(lab):
    """Softmax keeps the shape."""
    assert lab.softmax(np.ones((2, 4))).shape == (2, 4), "one probability a logit"
'''


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Lab 01-02 of a small repository, which builds softmax, LLMEngine.step and a whole module."""
    make_repository(tmp_path)
    monkeypatch.chdir(tmp_path)
    add_lab(tmp_path, "phase-01-parts/lab-02-softmax", STARTER, SOLUTION, TEST, {},
            title="Softmax", extra=BUILDS)  # fmt: skip
    course = load_course(tmp_path.resolve())
    assert course.problems == ()
    return course.labs[-1]


def refused(lab: Lab, source: str) -> str:
    """What is said of a starter with this source, or nothing."""
    lab.starter.write_text(source)
    try:
        refuse_the_answer(load_module(lab.starter, "refuse_probe"), lab.starter, lab.folder)
    except AnswerImportedError as error:
        return f"line {error.line}: {error}"
    return ""


SOFTMAX = "lab 01-02 has you write softmax; "
MODULE = "lab 01-02 has you write what mini_vllm.engine.engine_thread holds; "


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import numpy\nfrom mini_vllm.sample.ops import softmax\n",
            f"line 2: {SOFTMAX}it is imported from mini_vllm.sample.ops",
        ),
        (
            "from mini_vllm.sample.sampler import softmax as s\n",
            f"line 1: {SOFTMAX}it is imported from mini_vllm.sample.sampler",
        ),
        (
            "def softmax(x):\n    from mini_vllm.sample.sampler import softmax\n    return softmax(x)\n",
            f"line 2: {SOFTMAX}it is imported from mini_vllm.sample.sampler",
        ),
        (
            "import mini_vllm.sample.sampler as s\ndef softmax(x):\n    return s.softmax(x)\n",
            f"line 3: {SOFTMAX}s.softmax is the engine's own",
        ),
        (
            "import mini_vllm.sample.sampler\n"
            "def softmax(x):\n    return mini_vllm.sample.ops.softmax(x)\n",
            f"line 3: {SOFTMAX}mini_vllm.sample.ops.softmax is the engine's own",
        ),
        (
            "from mini_vllm.sample import sampler\ndef softmax(x):\n    return sampler.softmax(x)\n",
            f"line 3: {SOFTMAX}sampler.softmax is the engine's own",
        ),
        ("from mini_vllm.sample.sampler import *\n", f"line 1: {SOFTMAX}softmax is the engine's own"),
        (
            "import mini_vllm.sample.sampler\nmine = getattr(mini_vllm.sample.sampler, 'soft' + 'max')\n",
            f"line 1: {SOFTMAX}mine is the engine's own",
        ),
        (
            "from mini_vllm.engine.llm_engine import LLMEngine\nclass Engine(LLMEngine):\n    pass\n",
            "line 1: lab 01-02 has you write LLMEngine.step; Engine.step is the engine's own",
        ),
        (
            "from mini_vllm.engine.llm_engine import LLMEngine\ndef go(e):\n    return LLMEngine.step(e)\n",
            "line 3: lab 01-02 has you write LLMEngine.step; LLMEngine.step is the engine's own",
        ),
        (
            "import mini_vllm.engine.engine_thread\n",
            f"line 1: {MODULE}mini_vllm.engine.engine_thread is imported",
        ),
        (
            "from mini_vllm.engine.engine_thread import merge_output\n",
            f"line 1: {MODULE}merge_output is imported from mini_vllm.engine.engine_thread",
        ),
        (
            "from mini_vllm.engine.async_llm import EngineThread\n",
            f"line 1: {MODULE}EngineThread is imported from mini_vllm.engine.async_llm",
        ),
        (
            "from mini_vllm.engine import engine_thread\n",
            f"line 1: {MODULE}engine_thread is imported from mini_vllm.engine",
        ),
    ],
)  # fmt: skip
def test_an_imported_answer_is_named(lab: Lab, source: str, said: str) -> None:
    assert refused(lab, source) == said


@pytest.mark.parametrize(
    "source",
    [
        SOLUTION,
        STARTER,
        "from mini_vllm.sample.ops import compute_logprobs\n",
        "import json as sampler\n\n\ndef softmax(logits):\n    return sampler.softmax(logits)\n",
        "from mini_vllm import LLMEngine\nclass Mine(LLMEngine):\n    def step(self):\n        return []\n",
        "from mini_vllm import LLMEngine\n\nengine = LLMEngine\n",
        # Defined elsewhere; the refused module only uses it.
        "from mini_vllm.engine.core import EngineDeadError\n",
    ],
)
def test_the_rest_of_the_engine_may_be_used(lab: Lab, source: str) -> None:
    assert refused(lab, source) == ""


def test_a_lab_that_names_nothing_refuses_nothing(lab: Lab) -> None:
    lab.readme.write_text(lab.readme.read_text().replace(BUILDS, ""))
    assert refused(lab, "from mini_vllm.sample.sampler import softmax\n") == ""


def test_what_builds_names_must_be_there(lab: Lab) -> None:
    lab.readme.write_text(lab.readme.read_text().replace(":softmax", ":softmix"))
    with pytest.raises(AttributeError, match="softmix"):
        refused(lab, SOLUTION)


def test_pytest_says_it_in_a_line_and_the_solution_passes(lab: Lab) -> None:
    lab.starter.write_text("from mini_vllm.sample.sampler import softmax\n")
    right, imported = run_jobs(
        lab.folder.parents[2], [Job(lab.folder, lab.solution), Job(lab.folder, lab.starter)]
    )
    assert right.passed
    said = f"{SOFTMAX}it is imported from mini_vllm.sample.sampler"
    assert {(t.outcome, t.message, t.line) for t in imported.tests} == {("syntax", said, 1)}


def test_course_grade_says_it_once(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    lab.starter.write_text("from mini_vllm.sample.sampler import softmax\n")
    ran = Ran(capsys, "grade", "01-02")
    assert ran.status == 1
    assert ran.line.count("has you write") == 1, ran.out
    assert "starter.py, line 1: from mini_vllm.sample.sampler import softmax" in ran.line
