"""A page stands before its lab, not in its place: it does not print what the lab asks for."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from answer_helpers import (
    FINDINGS,
    Answer,
    is_telling,
    numbers_in,
    printed_bodies,
    printed_numbers,
    sequences_in,
    statements,
)

from course.docs.pages import ROOT
from course.learner.labs import Course, load_course

# What pages may print, as (lab, name, page), and why.
BODIES: dict[tuple[str, str, str], str] = {
    ("01-03", "step", "phase-01-architecture/02-mini-build.md"): (
        "it is the error handling around the step, which the lab does not ask for"
    ),
    ("09-01", "sample", "phase-00-foundations/01-deep-dive.md"): (
        "temperature before top-p is that section's subject, the lab asks for eight stages"
    ),
}
# Likewise (lab, question, page). A question is asked with numbers that no page has; what stands here is
# the same number by chance, of something else.
NUMBERS: dict[tuple[str, str, str], str] = {
    ("08-04", "n-gram alone", "phase-08-speculative-decoding/00-guide.md"): (
        "1.25 tokens per step of a weak head, not a length that breaks even"
    ),
}


@pytest.fixture(scope="module")
def real() -> Course:
    return load_course(ROOT)


def keys(found: list[Answer]) -> set[tuple[str, str, str]]:
    return {(one.lab, one.what.partition(": ")[0], one.page) for one in found}


def test_no_page_prints_the_body_that_a_lab_asks_for(real: Course) -> None:
    found = printed_bodies(real)
    new = [str(one) for one in found if keys([one]) - BODIES.keys()]
    assert not new, (
        "say what it does and link it, or show what the lab does not ask:\n" + "\n".join(new)
    )
    gone = BODIES.keys() - keys(found)
    assert not gone, f"no page prints these any more, take them out of BODIES: {sorted(gone)}"


def test_no_page_prints_a_number_that_a_lab_asks_to_predict(real: Course) -> None:
    found = printed_numbers(real)
    new = [str(one) for one in found if keys([one]) - NUMBERS.keys()]
    assert not new, "ask for numbers that no page has:\n" + "\n".join(new)
    gone = NUMBERS.keys() - keys(found)
    assert not gone, f"no page prints these any more, take them out of NUMBERS: {sorted(gone)}"


def test_the_page_of_a_phases_labs_lists_them_all(real: Course) -> None:
    for phase in real.phases:
        page = (phase.folder / "labs" / "README.md").read_text(encoding="utf-8")
        rows = re.findall(
            r"^\| \[(\d\d-\d\d) [^\]]+\]\((lab-[^/]+)/README\.md\)", page, re.MULTILINE
        )
        assert rows == [(lab.id, lab.folder.name) for lab in phase.labs], phase.folder.name


def test_what_one_finds_is_folded(real: Course) -> None:
    for lab in real.labs:
        _, head, after = lab.readme.read_text(encoding="utf-8").partition(f"\n{FINDINGS}\n")
        section = after.partition("\n## ")[0].strip()
        folded = section.startswith("<details><summary>") and section.endswith("</details>")
        assert folded or not head, f"{lab.id}: put what one finds into <details>"


# --- the check itself, on a small repository ---


def show(course: Course, text: str) -> None:
    (course.phases[0].folder / "00-guide.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("result = 0\nfor item in items:\n    result += item\nreturn result", ["total"]),
        (">>> s = 0\n>>> for x in [1, 2]:\n...     s += x\n>>> print(s)", []),  # three of four
        ("def f(xs):\n    n = 0\n    for x in xs:\n        n += x\n    return n", ["total"]),
        ("result = 0\nfor item in items:\n    result += item", []),
        ("total = sum(items)\nreturn total", []),
    ],
)
def test_a_body_is_found_whatever_its_names_are(
    course: Course, block: str, found: list[str]
) -> None:
    show(course, f"# A guide\n\n```python\n{block}\n```\n")
    printed = [one for one in printed_bodies(course) if one.lab == course.labs[0].id]
    assert [one.what for one in printed] == found


def test_what_differs_in_names_alone_is_the_same() -> None:
    ours = ast.parse(
        "left: int = self.budget - len(tokens)\nif left > 0:\n    return tokens[:left]"
    ).body
    theirs = ast.parse("room = budget - len(drafts)\nif room > 0:\n    return drafts[:room]").body
    assert statements(ours) == statements(theirs)
    assert statements(ours) != statements(ast.parse("left = budget + len(tokens)").body)


@pytest.mark.parametrize(
    ("value", "telling"),
    [(5.47, True), (195, True), (14528, True), (3.288, True), (2, False), (0.5, False), (127, False),
     (4096, False), (500, False), (1.5, False), (1e-05, False), (float("inf"), False)],
)  # fmt: skip
def test_only_numbers_that_say_something_count(value: float, telling: bool) -> None:
    assert is_telling(value) is telling


def test_numbers_are_those_that_one_reads() -> None:
    line = (
        '[`schedule:544`](x.py#L733 "x.py:733 schedule") reads 14,528 keys in 5.47 ms, v0.22 or V1.'
    )
    assert numbers_in(line) == {14528, 5.47}


@pytest.mark.parametrize(
    ("answer", "lists"),
    [
        ([51, 13, 1], ["51, 13, 1"]),
        ({"a": (1, 2, 3)}, []),
        ([[7, 1], [40, 9.5, 2]], ["40, 9.5, 2"]),
    ],
)
def test_lists_count_as_they_are_printed(answer: Any, lists: list[str]) -> None:
    assert list(sequences_in(answer)) == lists


def test_a_number_is_found_outside_of_its_question(course: Course) -> None:
    lab = course.labs[0]
    for file in (lab.starter, lab.solution):
        end = (
            "raise NotImplementedError"
            if file == lab.starter
            else "return {'sum': 5.47, 'given': 3.14}"
        )
        text = file.read_text(encoding="utf-8")
        file.write_text(f"{text}\n\ndef predictions():\n    {end}\n", encoding="utf-8")
    readme = lab.readme.read_text(encoding="utf-8")
    question = "## Predict first\n\nWhat is 3.14 and 2.33?\n\n## What you build\n\nA sum.\n\n"
    lab.readme.write_text(
        f"{readme}\n{question}## What you should find\n\n5.47\n", encoding="utf-8"
    )
    show(course, "# A guide\n\nIt is 5.47, not 3.14.\n")
    assert [(one.what, Path(one.page).name) for one in printed_numbers(course)] == [
        ("sum: 5.47", "00-guide.md")
    ]
