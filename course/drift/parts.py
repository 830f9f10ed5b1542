"""The other parts of vLLM that run without a GPU, by release: what each makes of the same cases.

    python -m course.drift.parts                    asks every release, half an hour, and writes parts.tsv
    python -m course.drift.parts 0.29.0 PART        shows cases of which it makes something else than the pin

The environment is the second one of SETUP.md, as for `record`. What a change is comes from comparing the
releases' source, and stands in `WORDS`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from course.drift.part_cases import PARTS
from course.drift.record import ROOT, SETTINGS, fetch
from course.learner.labs import CourseError
from mini_vllm.config.scheduler import RELEASES

TABLE = Path(__file__).parent / "results" / "parts.tsv"
_SETTINGS = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
_VLLM = "https://github.com/vllm-project/vllm/issues"
WORDS = (
    ("sampler: top_k, top_p, in Triton", "0.23.0",
     "top-p's threshold is searched for in another way; a token at the edge may fall on the other side "
     "(#42191)"),
    ("sampler: top_k, top_p, in Triton", "0.30.0", "batches below 8, too, use the kernel (#54651)"),
    ("sampler: min_tokens beside a grammar", "0.29.0",
     "where the grammar leaves nothing but stop tokens, they stay (#54218)"),
    ("sampler: drawn on a CPU, some", "0.29.0", "seeds hold beside rows that have none (#51226)"),
    ("sampler: drawn on a CPU", "0.32.0",
     "not run, since a compiled kernel draws (#53913); by its source a seed gives other tokens"),
    ("rejection sampler: padded", "0.25.0", "a draft of -1 is never accepted (#46533)"),
    ("CUDA graphs: capture sizes with drafts", "0.29.0",
     "sizes of whole decodes are added, multiples of 1 + drafts (#50488)"),
    ("CUDA graphs: capture sizes", "0.31.0", "`max_num_seqs` is added, if it fits (#57355)"),
    ("KV cache: windows whose pages", "0.24.0",
     "the smaller pages are padded; before, vLLM did not start (#45181)"),
    ("KV cache: longest text", "0.26.0", "windows hold blocks for plans in flight, too (#47728)"),
    ("KV cache: longest text", "0.29.0", "one block is kept back, the null block (#47272)"),
)  # fmt: skip
"""What a part does otherwise since a release: begin of the part, release, words. `#` is before the number
of an issue or a pull request."""


@dataclass(frozen=True)
class Outcome:
    """A part in a release."""

    release: str
    part: str
    cases: int
    differ: int
    """Cases of which it makes something else than the pin."""
    since: int
    """And something else than the release before."""
    digest: str
    reason: str = ""
    """Why it could not be run."""


def digest(outcomes: list[Any]) -> str:
    """Of all cases of a part."""
    return hashlib.sha256(json.dumps(outcomes).encode()).hexdigest()[:10]


def ask(tree: Path | None, parts: list[str]) -> dict[str, list[Any]]:
    """What the `vllm` of this folder, or else the installed one, makes of the parts' cases.

    Raises CourseError if this environment cannot run it.
    """
    keep = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    path = os.pathsep.join(map(str, (tree, ROOT) if tree else (ROOT,)))
    found: dict[str, list[Any]] = {}
    for stand_in in (False, True):  # that is for the whole process
        names = [name for name in parts if PARTS[name].stand_in is stand_in]
        if not names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cases.json"
            done = subprocess.run(
                [sys.executable, "-m", "course.drift.part_cases", str(out), *names],
                env=keep | SETTINGS | _SETTINGS | {"PYTHONPATH": path},
                capture_output=True,
                encoding="utf-8",
            )
            if done.returncode or not out.is_file():
                raise CourseError(f"{tree} could not be asked: {done.stderr[-600:]}")
            found |= json.loads(out.read_text(encoding="utf-8"))
    return found


def error_of(outcome: Any) -> str | None:
    """Why a case could not be run."""
    return outcome["error"] if isinstance(outcome, dict) else None


def compare(answers: dict[str, dict[str, list[Any]]]) -> list[Outcome]:
    """Of all releases, pin first, beside the pin and the release before."""
    rows = []
    at_pin = before = answers[RELEASES[0]]
    for release, found in answers.items():
        for part, outcomes in found.items():
            errors = Counter(filter(None, map(error_of, outcomes)))
            whole = errors.total() == len(outcomes)
            differ, since = (
                sum(now != then for now, then in zip(outcomes, other[part], strict=True))
                for other in (at_pin, before)
            )
            reason = errors.most_common(1)[0][0] if whole else ""
            rows.append(
                Outcome(release, part, len(outcomes), differ, since, digest(outcomes), reason)
            )
        before = found
    return rows


def read() -> list[Outcome]:
    """What is recorded."""
    lines = (line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines())
    return [
        Outcome(release, part, int(cases), int(differ), int(since), digest, reason)
        for release, part, cases, differ, since, digest, reason in lines
    ]


def words(part: str, release: str) -> str:
    """What changed there. Raises CourseError if `WORDS` does not say."""
    for begin, first, said in WORDS:
        if first == release and part.startswith(begin):
            return re.sub(r"#(\d+)", rf"[\1]({_VLLM}/\1)", said)
    raise CourseError(f"{part} does otherwise since {release}: say in WORDS what changed")


def table() -> list[list[str]]:
    """A row a part: its cases, the last release that does as the pin, and what changed then."""
    rows = []
    recorded = read()
    for part in dict.fromkeys(outcome.part for outcome in recorded):
        history = [outcome for outcome in recorded if outcome.part == part]
        same = [outcome.release for outcome in history if not outcome.differ]
        changes, stopped = [], False
        for outcome in history:
            if outcome.since and not stopped:
                changes.append(f"{outcome.release}: {words(part, outcome.release)}")
                stopped = bool(outcome.reason)
        rows.append([part, str(history[0].cases), same[-1], "; ".join(changes)])
    return rows


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments:
        release, part = arguments
        now, then = (ask(fetch(one), [part])[part] for one in (release, RELEASES[0]))
        for number, (a, b) in enumerate(zip(now, then, strict=True)):
            if a != b:
                print(f"case {number}\n  {RELEASES[0]}: {b}\n  {release}: {a}")
        return 0
    rows = compare({release: ask(fetch(release), list(PARTS)) for release in RELEASES})
    lines = ("\t".join(map(str, astuple(row))) + "\n" for row in rows)
    TABLE.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
