"""A small repository with two labs, for tests of the command `course`."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from course.authors.proof import take_fingerprints
from course.learner.labs import MISTAKES, PROOF, Course, Lab, load_course
from tests.engine.helpers.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

# Set by whoever runs the suite, and none of the newcomer's business.
UNSET = ("LAB_IMPL", "PYTHONPATH", "COLUMNS", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS")

PYPROJECT = """\
[project]
name = "mini-vllm-course"
version = "0"

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "--strict-markers"]
"""

README = """\
---
phase: {phase}
lab: {number}
title: {title}
tag: CPU-OK
minutes: {minutes}
prerequisites: [{needs}]
{extra}---

# Lab {phase:02}-{number:02}: {title}

Run it: `course grade {phase:02}-{number:02}`, or `LAB_IMPL=starter pytest {folder}`.

| test | what it pins |
| --- | --- |
{tests}

Stuck? [HINTS.md](HINTS.md)
"""

HINTS = """\
<details><summary>Hint 1: look</summary>

Look at the *first* item.

</details>

<details>
<summary>Hint 2: count</summary>
Count them.
</details>

<details><summary>Hint 3: nearly there</summary>

    sum(items)

</details>
"""

TOTALS_STARTER = '''\
"""Totals."""


def total(items):
    """The sum of `items`.

    Args:
        items: a list of numbers, perhaps empty.
    """
    raise NotImplementedError


def clip(x, low, high):
    """`x`, but at least `low` and at most `high`."""
    raise NotImplementedError
'''
TOTALS_SOLUTION = '''\
"""Totals."""


def total(items):
    """The sum of `items`."""
    result = 0
    for item in items:
        result += item
    return result


def clip(x, low, high):
    """`x`, but at least `low` and at most `high`."""
    if x < low:
        return low
    return min(x, high)
'''
TOTALS_TEST = '''\
import pytest


def test_total_adds_every_item(lab):
    """total adds all items, the first and the last too."""
    assert lab.total([1, 2, 4]) == 7, f"total([1, 2, 4]) is {lab.total([1, 2, 4])}: an item is missing"


def test_total_of_nothing_is_zero(lab):
    """The sum of no items is 0."""
    assert lab.total([]) == 0, "no items add up to 0, not to something else"


@pytest.mark.parametrize(("x", "wanted"), [(-1, 0), (3, 3), (9, 5)])
def test_clip_keeps_to_both_bounds(lab, x, wanted):
    """clip goes up to low and down to high, and leaves the rest alone."""
    got = lab.clip(x, 0, 5)
    assert got == wanted, f"clip({x}, 0, 5) must be {wanted}, got {got}: both bounds count"
'''
# A second file of tests for the same lab, and what its tests share.
TOTALS_TEST_MORE = '''\
from course.learner.labs import load_support

support = load_support(__file__)


def test_total_of_one_item_is_that_item(lab):
    """One item adds up to itself."""
    support.expect(lab.total(support.ONE), 5, "one item is its own sum")
    share = 1 / lab.total(support.ONE)
    assert share == 0.2, "one of five is a fifth"
'''
TOTALS_SUPPORT = """\
ONE = [5]


def expect(got, wanted, rule):
    assert got == wanted, f"should be {wanted}, got {got}: {rule}"
"""


def mistake(key: str, name: str, hint: str, test: str, change: str) -> str:
    """An entry of `mistakes.toml`."""
    return (
        f'[{key}]\nname = "{name}"\nhint = "{hint}"\ntest = "{test}"\n'
        f"change = '''\n{change}\n'''\n"
    )


TOTALS_MISTAKES = {
    "skips_the_first": mistake(
        "skips_the_first",
        "The first item is left out.",
        "Indices begin at 0, not at 1.",
        "test_total_adds_every_item",
        "total\n= return sum(items[1:])",
    ),
    "starts_at_one": mistake(
        "starts_at_one",
        "The sum begins at 1.",
        "Nothing added up is 0.",
        "test_total_of_nothing_is_zero",
        "total\n- result = 0\n+ result = 1",
    ),
    "only_one_bound": mistake(
        "only_one_bound",
        "Only the lower bound is kept.",
        "There are two bounds.",
        "test_clip_keeps_to_both_bounds",
        "clip\n- return min(x, high)\n+ return x",
    ),
}

DRAW_STARTER = '''\
"""A sampler."""
import mini_vllm.sample.sampler
from mini_vllm.sample.sampler import SamplerOutput


class Sampler(mini_vllm.sample.sampler.Sampler):
    """The engine's sampler; greedy rows are yours."""

    def __call__(self, logits, sampling_metadata):
        """A SamplerOutput with token ids of shape [n]."""
        raise NotImplementedError
'''
DRAW_SOLUTION = DRAW_STARTER.replace(
    "raise NotImplementedError", "return super().__call__(logits, sampling_metadata)"
)
DRAW_TEST = '''\
import numpy as np

from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sampling_params import SamplingParams


class Row:
    sampling_params = SamplingParams(temperature=0.0)
    prompt_token_ids = [1]
    output_token_ids = []
    generator = None


def test_greedy_takes_the_largest(lab):
    """The token with the largest logit wins."""
    logits = np.array([[0.0, 3.0, 1.0]], dtype=np.float32)
    out = lab.Sampler(0)(logits, SamplingMetadata.build([Row()], 3))
    token = int(out.sampled_token_ids[0])
    assert token == 1, f"greedy takes the largest logit, token 1; got token {token}"
'''
DRAW_MISTAKES = {
    f"always_{n}": mistake(
        f"always_{n}",
        f"Always token {n}.",
        "Look at the logits.",
        "test_greedy_takes_the_largest",
        "Sampler.__call__\n"
        "= token_ids = super().__call__(logits, sampling_metadata).sampled_token_ids\n"
        f"= return SamplerOutput(token_ids * 0 + {n})",
    )
    for n in (0, 2, 5)
}


def add_lab(
    root: Path,
    name: str,
    starter: str,
    solution: str,
    test: str,
    mistakes: dict[str, str],
    *,
    title: str,
    needs: str = "",
    extra: str = "",
) -> Path:
    """Write a lab into `root`; `name` is `phase-NN-slug/lab-NN-slug`."""
    phase, lab = name.split("/")
    folder = root / phase / "labs" / lab
    folder.mkdir(parents=True)
    names = re.findall(r"^def (test_\w+)", test, re.MULTILINE)
    readme = README.format(
        phase=int(phase.split("-")[1]), number=int(lab.split("-")[1]), title=title, needs=needs,
        extra=extra, folder=folder.relative_to(root), minutes=20,
        tests="\n".join(f"| `{name}` | something |" for name in names),
    )  # fmt: skip
    (folder / "README.md").write_text(readme)
    (folder / "HINTS.md").write_text(HINTS)
    (folder / "starter.py").write_text(starter)
    (folder / "solution.py").write_text(solution)
    (folder / "test_lab.py").write_text(test)
    (folder / PROOF).mkdir()
    (folder / MISTAKES).write_text("\n".join(mistakes.values()))
    return folder


def make_repository(root: Path) -> Course:
    """Two labs in two phases: 00-01 `totals`, 01-01 `drawing` (part sampler)."""
    root.mkdir(exist_ok=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    conftest = (ROOT / "conftest.py").read_text(encoding="utf-8")
    # No test here uses hypothesis, and importing it would be a third of every grading.
    (root / "conftest.py").write_text(conftest.replace('find_spec("hypothesis")', "find_spec('-')"))
    add_lab(
        root, "phase-00-beginnings/lab-01-totals",
        TOTALS_STARTER, TOTALS_SOLUTION, TOTALS_TEST, TOTALS_MISTAKES, title="Totals",
    )  # fmt: skip
    add_lab(
        root, "phase-01-parts/lab-01-drawing",
        DRAW_STARTER, DRAW_SOLUTION, DRAW_TEST, DRAW_MISTAKES,
        title="Drawing", needs='"00-01"', extra="part: sampler\nclass: Sampler\n",
    )  # fmt: skip
    return load_course(root.resolve())


@functools.cache
def _fingerprints_of_totals() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        course = make_repository(Path(folder, "repository"))
        problems = [*take_fingerprints(course, course.labs[0])]
        assert not problems, problems
        return course.labs[0].fingerprints.read_bytes()


def take_totals(lab: Lab) -> None:
    """Give the lab `totals`, as `make_repository` has it, its fingerprints: they are taken once."""
    lab.fingerprints.write_bytes(_fingerprints_of_totals())


def add_tests(lab: Lab) -> None:
    """Give the lab `totals` test_lab_more.py and support.py."""
    (lab.folder / "test_lab_more.py").write_text(TOTALS_TEST_MORE)
    (lab.folder / "support.py").write_text(TOTALS_SUPPORT)
    row = "| `test_total_adds_every_item` | something |"
    text = lab.readme.read_text()
    assert row in text
    more = row.replace("adds_every_item", "of_one_item_is_that_item")
    lab.readme.write_text(text.replace(row, f"{row}\n{more}"))


def write_metadata(folder: Path) -> None:
    """What an installer writes for this project into `folder`: its name and its entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


def solve(lab: Lab) -> None:
    """Put the solution into the starter, as a learner who got it right."""
    lab.starter.write_bytes(lab.solution.read_bytes())


class Ran:
    """One call of `course` in this process: status, output, and the output in one line."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
        from course.learner.cli import main

        capsys.readouterr()
        self.status = main(list(argv))
        self.out, self.err = capsys.readouterr()

    @property
    def line(self) -> str:
        """Output and errors without line breaks: where they fall is the window's business."""
        return " ".join((self.out + self.err).split())


def run_module(
    cwd: Path, *argv: str, path: tuple[Path, ...] = (), text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """`python -m ARGV` in a fresh process, its packages from `path` before this repository's."""
    env = {k: v for k, v in os.environ.items() if k not in UNSET}
    env["PYTHONPATH"] = os.pathsep.join(map(str, (*path, ROOT)))
    env["PYTHONIOENCODING"] = "utf-8"
    return subprocess.run(
        [sys.executable, "-m", *argv], cwd=cwd, env=env, input=text, capture_output=True,
        text=True, encoding="utf-8", check=False, timeout=PATIENCE,
    )  # fmt: skip


def git(root: Path, *arguments: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *name, *arguments], check=True, capture_output=True)
