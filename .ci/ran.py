"""Which test ran in which part of .ci/run: none may run in two, nor be skipped in all for want of a package.

    python .ci/ran.py FILE.xml...

Each file is what `pytest --junitxml` wrote in the part that it is named for. The parts that repeat the
learner's suite on purpose (REPEATS) may repeat each other, and nothing else may repeat them.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

REPEATS = re.compile(r"uv|pip|solved|second|cores-.*")
WANTING = re.compile(
    r"^(torch|triton|vllm): |could not import|is(?: not|n't) installed|no vLLM .*tree"
)


def read_outcomes(path: Path) -> tuple[set[str], dict[str, str]]:
    """What ran, and why the rest was skipped: `folder.file::test`, or `folder.file` for a whole file."""
    ran, skipped = set(), {}
    for case in ET.parse(path).iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        reason = case.find("skipped")
        if reason is None:
            ran.add(name)
        else:
            skipped[name] = reason.get("message") or ""
    return ran, skipped


def main(argv: list[str]) -> int:
    parts: dict[str, set[str]] = defaultdict(set)
    skipped: dict[str, set[str]] = defaultdict(set)
    for path in map(Path, argv):
        ran, left = read_outcomes(path)
        part = "the learner's suite" if REPEATS.fullmatch(path.stem) else path.stem
        for name, why in left.items():
            skipped[name].add(why)
        for name in ran:
            parts[name].add(part)
    twice = {name: where for name, where in parts.items() if len(where) > 1}
    files = {name.split("::")[0] for name in parts}
    nowhere = {
        name: why for name, why in skipped.items() if name not in parts and name not in files
    }
    # A part that had the package may still have skipped the test, say for want of AVX-512: that is a reason.
    wanting = {
        name: min(reasons)
        for name, reasons in nowhere.items()
        if all(WANTING.search(why) and not why.startswith("gpu: ") for why in reasons)
    }
    for name, where in sorted(twice.items()):
        print(f"{name} ran in {' and in '.join(sorted(where))}")
    for name, why in sorted(wanting.items()):
        print(f"{name} ran nowhere: {why}")
    print(f"{len(parts)} tests ran, {len(twice)} of them in two parts; {len(nowhere)} were skipped in all, "
          f"{len(wanting)} of them for want of a package")  # fmt: skip
    return 1 if twice or wanting or not parts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
