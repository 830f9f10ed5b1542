"""Finding the repository and its labs, reading front matter, resolving what a reader types."""

from __future__ import annotations

from pathlib import Path

import pytest
from course_helpers import (
    ROOT,
    TOTALS_SOLUTION,
    TOTALS_STARTER,
    TOTALS_TEST,
    add_lab,
    make_repository,
)

from course.learner.front_matter import front_matter
from course.learner.labs import (
    Course,
    CourseError,
    engine_parts,
    find_root,
    load_course,
    load_support,
    read_lab,
)
from mini_vllm.engine.parts import DEFAULT_PARTS


@pytest.fixture
def course(tmp_path: Path) -> Course:
    make_repository(tmp_path)
    for name, title in (
        ("phase-01-parts/lab-02-block-pool", "The block pool"),
        ("phase-01-parts/lab-03-block-hash", "Hashing blocks"),
    ):
        add_lab(tmp_path, name, TOTALS_STARTER, TOTALS_SOLUTION, TOTALS_TEST, {}, title=title)
    return load_course(tmp_path)


def test_the_front_page_adds_up_the_labs_minutes() -> None:
    labs = load_course(ROOT).labs
    hours = round(sum(lab.minutes for lab in labs) / 60)
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"of which {hours} go into {len(labs)} labs" in front


def test_labs_come_in_reading_order(course: Course) -> None:
    assert [lab.id for lab in course.labs] == ["00-01", "01-01", "01-02", "01-03"]
    assert [len(phase.labs) for phase in course.phases] == [1, 3]
    assert course.problems == ()


def test_what_the_front_matter_says(course: Course) -> None:
    lab = course.labs[1]
    assert (lab.title, lab.tag, lab.minutes) == ("Drawing", "CPU-OK", 20)
    assert (lab.prerequisites, lab.part, lab.class_name) == (("00-01",), "sampler", "Sampler")


@pytest.mark.parametrize(
    "name",
    ["01-02", "1-2", "01/2", "1/02", " 01-02 ", "01.02", "lab-02-block-pool", "block-pool", "pool",
     "Block Pool", "block_pool", "phase-01-parts/labs/lab-02-block-pool", "lab-02",
     "phase-01-parts/labs/lab-02-block-pool/starter.py", "labs/lab-02"],
)  # fmt: skip
def test_names_that_mean_one_lab(course: Course, name: str) -> None:
    assert course.resolve(name, cwd=course.root).id == "01-02"


def test_a_path_counts_from_the_current_folder(course: Course) -> None:
    labs = course.root / "phase-01-parts" / "labs"
    assert course.resolve("lab-02-block-pool/starter.py", cwd=labs).id == "01-02"
    assert course.resolve(".", cwd=labs / "lab-03-block-hash" / "deeper").id == "01-03"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("block", "more than one lab"),
        ("01-07", "01-02  lab-02-block-pool"),
        ("blok-pool", "01-02  lab-02-block-pool"),
        ("drawings", "01-01  lab-01-drawing"),
        ("zzzzzzzz", "none comes near"),
        ("", "empty"),
    ],
)
def test_other_names_get_what_is_near(course: Course, name: str, said: str) -> None:
    with pytest.raises(CourseError) as error:
        course.resolve(name, cwd=course.root)
    assert said in str(error.value)


@pytest.mark.parametrize(("name", "number"), [("1", 1), ("01", 1), ("parts", 1), ("phase-00", 0)])
def test_names_of_phases(course: Course, name: str, number: int) -> None:
    assert course.phase(name).number == number


@pytest.mark.parametrize(("name", "said"), [("7", "no phase"), ("phase", "several phases")])
def test_other_names_of_phases(course: Course, name: str, said: str) -> None:
    with pytest.raises(CourseError, match=said):
        course.phase(name)


def test_the_root_is_found_from_any_folder_below(course: Course) -> None:
    assert find_root(course.labs[0].folder) == course.root
    assert find_root(course.root) == course.root


def test_outside_of_the_repository_it_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "pyproject.toml").write_text('[project]\nname = "another"\n')
    with pytest.raises(CourseError, match="not inside the course's repository"):
        find_root(elsewhere)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("phase: 1", "phase: 2", "phase is 2, but the folder's name says 1"),
        ("lab: 1", "lab: 01x", "lab is '01x'"),
        ("title: Drawing\n", "", "title missing"),
        ("title: Drawing", "title: One: two", "put quotes around"),
        ("title: Drawing", "title: yes", "put quotes around"),
        ("tag: CPU-OK", "tag: CPU", "tag must be one of CPU-OK, GPU-OPT, GPU-REQ, got 'CPU'"),
        ("minutes: 20", "minutes: 0", "from 1 to 600, got 0"),
        ("minutes: 20", "minutes: soon", "got 'soon'"),
        ('["00-01"]', '["1"]', "list of lab ids"),
        ('["00-01"]', '["07-01"]', "there is no lab 07-01"),
        ('["00-01"]', '["01-02"]', "01-02 does not come before 01-01"),
        ("part: sampler", "part: engine", "part must be one of block_pool"),
        ("class: Sampler\n", "", "part and class go together"),
        ("minutes: 20", "minutes: 20\nbuilds: sampler", "builds must be a list such as"),
        ("minutes: 20", "minutes: 20\nbuilds: [softmax]", "builds must be a list such as"),
        ("minutes: 20", "minutes: 20\nminutes: 30", "minutes stands there twice"),
        ("minutes: 20", "minutes 20", "expected 'key: value'"),
        ("minutes: 20", "minutes: 20\nlevel: 3", "unknown key level"),
    ],
)
def test_front_matter_that_breaks_a_rule(course: Course, old: str, new: str, said: str) -> None:
    readme = course.labs[1].readme
    text = readme.read_text()
    assert old in text
    readme.write_text(text.replace(old, new, 1))
    problems = load_course(course.root).problems
    assert any(said in problem for problem in problems), problems


def test_a_broken_lab_does_not_keep_a_reader_from_the_others(course: Course) -> None:
    course.labs[2].readme.unlink()
    again = load_course(course.root)
    assert [lab.id for lab in again.labs] == ["00-01", "01-01", "01-03"]
    assert any("no README.md" in problem for problem in again.problems)


def test_two_labs_with_one_number(course: Course) -> None:
    folder = course.labs[1].folder
    folder.rename(folder.with_name("lab-02-drawing"))
    readme = folder.with_name("lab-02-drawing") / "README.md"
    readme.write_text(readme.read_text().replace("lab: 1\n", "lab: 2\n"))
    assert any("01-02 is lab-02-" in problem for problem in load_course(course.root).problems)


def test_a_folder_that_is_no_lab(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="phase-NN-slug/labs/lab-NN-slug"):
        read_lab(tmp_path)


FRONT_MATTER = """\
---
phase: 0   # the first
lab: 12
title: "A: b # c"
tag: CPU-OK  # a laptop is enough
minutes: 40
prerequisites: ["00-01", '00-02']
# a comment
other: plain words, with a comma
empty: []
---
"""


def test_front_matter_is_read() -> None:
    assert front_matter(FRONT_MATTER + "# Page\n") == {
        "phase": 0,
        "lab": 12,
        "title": "A: b # c",
        "tag": "CPU-OK",
        "minutes": 40,
        "prerequisites": ["00-01", "00-02"],
        "other": "plain words, with a comma",
        "empty": [],
    }


def test_front_matter_is_read_as_yaml_reads_it() -> None:
    yaml = pytest.importorskip("yaml")
    pages = [FRONT_MATTER, *(lab.readme.read_text() for lab in load_course(ROOT).labs)]
    for page in pages:
        assert front_matter(page) == yaml.safe_load(page.split("---\n")[1]), page


@pytest.mark.parametrize("text", ["", "# Page\n", "---\nphase: 0\n"])
def test_a_page_without_front_matter(text: str) -> None:
    with pytest.raises(ValueError, match="front matter"):
        front_matter(text)


def test_what_tests_share_is_loaded_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "support.py").write_text("seen = []\n")
    support = load_support(tmp_path / "one" / "test_lab.py")
    assert load_support(tmp_path / "one" / "conftest.py") is support
    other = load_support(tmp_path / "two" / "test_lab.py")
    assert other.seen is not support.seen, "two labs, and one support.py for both"


def test_the_parts_are_those_of_the_engine() -> None:
    assert engine_parts() == tuple(vars(DEFAULT_PARTS))
