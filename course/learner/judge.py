"""What a learner is told of failures: the known mistakes they look like, and of which the cure is due."""

from __future__ import annotations

from course.learner.causes import read_causes
from course.learner.fingerprints import known
from course.learner.grade import Grade, compare, run_lab
from course.learner.labs import Course, Lab
from course.learner.progress import Progress
from course.learner.results import LabRun


def grade(course: Course, lab: Lab, progress: Progress) -> Grade:
    """Grade starter.py of `lab`, keep the result in `progress`, and compare it with known mistakes."""
    return judge(lab, run_lab(course, lab, progress), progress)


def judge(lab: Lab, run: LabRun, progress: Progress) -> Grade:
    """The grade of a run: which known mistakes it looks like, and which of these were met before.

    A mistake was met before if it was named at an earlier grading, or if a test that it fails has failed at
    the last one too. What this run fails and is called is kept in `progress`. A file that did not load
    changes nothing there: none of its tests has said anything.
    """
    likeness = compare(lab, run)
    unread = run.problem is not None or any(test.outcome == "syntax" for test in run.bad)
    if run.passed or unread:
        return Grade(lab, run, likeness)
    before = progress[lab]
    causes = read_causes(lab)
    bad = sorted(run.bad, key=causes.place)
    again = {test.name for test in bad}.intersection(before.failing)
    named = likeness.mistakes if likeness is not None else ()
    fails = {one.key: kept.fails.keys() for one, kept in known(lab.folder)} if named else {}
    met = {one.key for one in named if one.key in before.named or again & fails[one.key]}
    with progress.update(lab) as entry:
        entry.failing = [test.name for test in bad]
        entry.causes = [causes.about(test) or "" for test in bad]
        entry.likely = [one.key for one in named]
        entry.named = sorted({*entry.named, *entry.likely})
        entry.hints += [key for key in sorted(met) if key not in entry.hints]  # the grade shows it
    return Grade(lab, run, likeness, frozenset(met))
