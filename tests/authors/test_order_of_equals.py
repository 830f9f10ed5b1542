"""Labs that promise an order among equals refuse code that keeps none, such as numpy's default sort."""

from __future__ import annotations

from pathlib import Path

from course_helpers import ROOT

from course.learner.grade import Job, run_jobs
from course.learner.labs import load_course
from course.learner.patch import patched

COURSE = load_course(ROOT)
SORTS = ', kind="stable"'

# The lab, a function of its solution, the line that keeps the order, without it, and the test that notices.
CASES = {
    "a token's experts": (
        "07-02", "largest", "return np.argsort(-scores, axis=-1{0})[:, :count]", "",
        "test_of_many_equal_experts_too",
    ),
    "an expert's pairs": (
        "07-02", "index_list",
        "return np.argsort(flat{0}), np.bincount(flat, minlength=num_experts)", "",
        "test_the_pairs_of_an_expert_ascend",
    ),
    "the copy that comes next": (
        "07-06", "replicate_experts", "phy2log[slot] = np.argmax(load / copies)",
        "phy2log[slot] = len(load) - 1 - np.argmax((load / copies)[::-1])",
        "test_copies_by_hand",
    ),
    "who noise can turn": (
        "07-08", "can_turn",
        "return set(np.argsort(-moved{0})[:k].tolist()) != set(order[:k].tolist())", "",
        "test_of_many_equal_ones_the_lower_indices_are_chosen",
    ),
    "who is mixed": (
        "07-08", "mix", "chosen = np.argsort(-logits{0})[:k]", "",
        "test_of_many_equal_ones_the_lower_indices_are_chosen",
    ),
    "who jumps": (
        "07-08", "jump", "order = np.argsort(-logits{0})", "",
        "test_of_many_equal_ones_the_lower_indices_are_chosen",
    ),
}  # fmt: skip


def test_an_order_that_is_not_kept_is_noticed(tmp_path: Path) -> None:
    """Each in one place only; everything else is the solution."""
    jobs = []
    for name, (lab_id, function, line, other, test) in CASES.items():
        lab = COURSE.resolve(lab_id)
        change = f"{function}\n- {line.format(SORTS)}\n+ {other or line.format('')}"
        path = tmp_path / name / "attempt.py"
        path.parent.mkdir()
        path.write_text(patched(lab.solution.read_text(encoding="utf-8"), change))
        for given in lab.folder.glob("support.py"):
            (path.parent / given.name).write_bytes(given.read_bytes())
        jobs.append(Job(lab.folder, path, only=(test,)))
    for (name, case), run in zip(CASES.items(), run_jobs(ROOT, jobs, 2), strict=True):
        assert [found.name for found in run.bad] == [case[-1]], f"{name}: {run}"
