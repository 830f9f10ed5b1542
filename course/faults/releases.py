"""Each fault of docs/FOUND_IN_VLLM.md on each release of vLLM: checks, their results, the table of these.

    python -m course.faults.releases                    writes the table of docs/RELEASES.md
    python -m course.faults.releases 0.33.0 [NAME ...]  tries the checks on a release first, some minutes

A release's Python is fetched as `course drift --record` does it, and runs in the second environment of
SETUP.md over the pin's compiled kernels (`old_kernels`), so faults of kernels cannot be tried so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from course.drift.record import ROOT, fetch
from course.drift.record import SETTINGS as QUIET
from course.faults.adapters import OF_ADAPTERS
from course.faults.cpu import SETTINGS
from mini_vllm.core.sched.releases import PIN, RELEASES

PAGE = ROOT / "docs" / "RELEASES.md"
FOUND = ROOT / "docs" / "FOUND_IN_VLLM.md"
RESULTS = Path(__file__).with_name("releases.tsv")


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    Attributes:
        section: its number in FOUND_IN_VLLM.md.
        says: the fault in some words.
        name: of its check in `course.faults.checks`; empty: it has none.
        mended_by: the pull request that did it, where one is known.
        why: it is not run on releases.
    """

    section: int
    says: str
    name: str = ""
    mended_by: int | None = None
    why: str = ""


FAULTS = (
    Fault(1, "a victim's blocks stay published, `priority`", "bystander"),
    Fault(2, "equals preempt each other for ever, `priority`", "equals"),
    Fault(3, "a seeded prompt in chunks ends the engine, CPU", "chunks"),
    Fault(4, "an int8 product saturates, CPU", why="its kernel"),
    Fault(5, "two forced resets double a token", "doubled"),
    Fault(5, "two forced resets end the engine", "deadly"),
    Fault(6, "a mixture without the grouped kernel dies, CPU", "mixture-config"),
    Fault(6, "a mixture dies of the kernel's tile, CPU", "mixture-tile"),
    Fault(7, "an FP8 cache is cut, CPU", why="its kernel"),
    Fault(8, "a cache turns to FP8, the log says `auto`", "silence"),
    Fault(9, "`fp8_e5m2` is admitted and asserts", "e5m2"),
    Fault(10, "int8 activations become FP8 ones", "int8-activations"),
    Fault(11, "FP8 weights alone find no kernel from 8.9 on", "fp8-weights"),
    Fault(12, "the query's scale is set back to 1", "query-scale"),
    Fault(13, "a seed is dropped beside a neighbour, CPU", "seed", 51866),
    Fault(13, "a request that can never have enough blocks waits", "pool", 47272),
    Fault(13, "a window gives back blocks that plans in flight read", "windows", 47728),
    Fault(13, "prompts never find what they share, every layer with a window", "shared-prefix"),
    Fault(13, "a NaN in a window, TRITON_ATTN", "nan"),
    Fault(13, "4-bit checkpoints end the engine without AVX-512, CPU", why="its kernel"),
    Fault(13, "`vllm serve` dies of the package's name", why="the packager's"),
    Fault(13, "`min_tokens` bars EOS one token longer, V2", "min-tokens", 46243),
    Fault(13, "`Preemptions:` is never logged", "preemptions"),
    Fault(13, "EPLB's balancedness compares layers", "balancedness", 51813),
    Fault(13, "a Qwen 3 loses a bias", "bias"),
    Fault(13, "experts in 4 bits end the engine, CPU", why="no check of its own"),
    Fault(13, "experts shared out over ranks end the engine, CPU", why="its kernel"),
    Fault(13, "drafts lose temperature, top-k and top-p, CPU", "temperature"),
    Fault(13, "a drafter has no slots in a request's first step", "drafter", 43733),
    Fault(13, "an EAGLE head reads a wrong token after a chunk", "after-a-chunk"),
    Fault(13, "weights that are not there load without a word", "missing"),
    Fault(13, "a consolidated file below hides the weights", "below"),
    Fault(13, "a request whose `min_tokens` do not fit never ends", "end"),
    Fault(13, "a Gemma 3 of full layers gets a window", "window", 49803),
    Fault(13, "a request in flight is forgotten at the gate of adapters", "in-flight"),
    Fault(13, "an adapter of merged layers is gathered on ranks that have it", "gathered", 45715),
    Fault(13, "an adapter that a step needs is evicted by it", "evicted"),
    Fault(13, "a row without an adapter gets one, CPU", "last-slot"),
    Fault(13, "a row keeps a slot that another adapter has", "moved", 47725),
    Fault(13, "new weights under an old name read old KV, another folder", "old-name"),
    Fault(13, "a salt finds the blocks of the adapter of that name", "salt"),
    Fault(13, "a load in place is repeated in each step", "in-place"),
    Fault(13, "`alpha_pattern` and `rank_pattern` are passed over", "patterns"),
    Fault(14, "a forced reset loses tokens, drafts in flight", "lost"),
    Fault(14, "a forced reset goes back too far, drafts in flight", "taken-back"),
    Fault(15, "a beam ends with another's EOS", "beam", 47126),
    Fault(16, "`logprob_token_ids` takes the others' logprobs", "neighbour"),
)
CHECKED = tuple(fault for fault in FAULTS if fault.name)
APART = (
    ("mixture-config", "mixture-tile"),
    ("e5m2", "int8-activations", "fp8-weights", "query-scale"),
    ("nan", "min-tokens"),
    tuple(OF_ADAPTERS),
)
"""Checks that want a process without the others."""


def read() -> dict[str, dict[str, str]]:
    """By check, what it came to in each release: `wrong`, `well`, or why it could not be run."""
    if not RESULTS.is_file():
        return {}
    head, *lines = (line.split("\t") for line in RESULTS.read_text(encoding="utf-8").splitlines())
    return {
        name: {r: cell for r, cell in zip(head[2:], cells, strict=True) if cell}
        for name, command, *cells in lines
        if not command.startswith("not run")
    }


def write(results: dict[str, dict[str, str]]) -> None:
    lines = [["fault", "run with", *RELEASES]]
    for fault in FAULTS:
        if not fault.name:
            lines.append([fault.says, f"not run: {fault.why}", *[""] * len(RELEASES)])
            continue
        found = results.get(fault.name, {})
        command = f"course.faults.checks {fault.name}"
        lines.append([fault.name, command, *(found.get(release, "") for release in RELEASES)])
    RESULTS.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


def record(release: str, names: list[str]) -> dict[str, str]:
    """What these checks come to in a release. Prints what each has seen."""
    path = [str(ROOT)] if release == PIN else [str(fetch(release)), str(ROOT)]
    settings = os.environ | QUIET | SETTINGS | {"PYTHONPATH": os.pathsep.join(path)}
    apart = [[name for name in group if name in names] for group in APART]
    together = [name for name in names if not any(name in group for group in apart)]
    found = {}
    for group in filter(None, [together, *apart]):
        command = [sys.executable, "-m", "course.faults.checks", *group]
        done = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8")
        for line in done.stdout.splitlines():
            name, _, rest = line.partition("\t")
            verdict, _, seen = rest.partition("\t")
            if name in group:
                print(f"{release} {name}: {verdict}: {seen}", flush=True)
                found[name] = f"not run: {seen}" if verdict == "not run" else verdict
        for name in [name for name in group if name not in found]:
            found[name] = f"not run: the process ended before, {done.stderr.strip()[-60:]!r}"
    return found


def table() -> str:
    """A row a fault, of the committed results."""
    results, rows = read(), []
    for fault in FAULTS:
        found = results.get(fault.name, {})
        cells = [_link(fault), *_span(found), fault.name and f"`{fault.name}`"]
        if not fault.name:
            cells = [_link(fault), f"not run: {fault.why}", "", ""]
        elif fault.mended_by and cells[2]:
            cells[2] += f" ([{fault.mended_by}]({_PULL}/{fault.mended_by}))"
        rows.append(cells)
    lines = [["fault", "goes wrong in", "mended in", "check"], ["---"] * 4, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_PULL = "https://github.com/vllm-project/vllm/pull"


def _span(found: dict[str, str]) -> tuple[str, str]:
    """The first and the last release that goes wrong; and the first that is well and stays so."""
    run = [release for release in RELEASES if found.get(release) in ("wrong", "well")]
    wrong = [release for release in run if found[release] == "wrong"]
    if not wrong:
        return "none", ""
    span = wrong[0] if len(wrong) == 1 else f"{wrong[0]} to {wrong[-1]}"
    since = run[run.index(wrong[-1]) + 1 :]
    return span, since[0] if since else ""


def _link(fault: Fault) -> str:
    [title] = re.findall(rf"^## {fault.section}\. (.+)$", FOUND.read_text(encoding="utf-8"), re.M)
    slug = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    return f"[{fault.section}](FOUND_IN_VLLM.md#{fault.section}-{slug}): {fault.says}"


def make_page(text: str) -> str:
    """The page with its table of faults as it should be."""
    begin, end = "<!-- table: faults -->\n", "\n<!-- end faults -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{table()}\n{end}{rest.partition(end)[2]}"


def main(argv: list[str] | None = None) -> int:
    release, *names = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if release:
        found = record(release, names or [fault.name for fault in CHECKED])
        results = read()
        for name, verdict in found.items():
            results.setdefault(name, {})[release] = verdict
        write(results)
    PAGE.write_text(make_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
