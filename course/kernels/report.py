"""What the bench says of a kernel: one `Finding` a judge that is content, one for each thing it refuses.

Plain data, so that a child process can hand it over as JSON. Imports neither numpy nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

# In this order they are asked. The first three run the kernel in Triton's interpreter.
JUDGES = ("right", "races", "bytes", "compiled")
INTERPRETED = ("right", "races", "bytes")


@dataclass(frozen=True)
class Finding:
    """One sentence of a judge.

    `ok` is False where it refuses and None where it could not judge. `figures` holds what it
    measured, by name; `message` is for a person.
    """

    judge: str
    ok: bool | None
    message: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All findings about one file."""

    path: str
    problem: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """No judge refused, and each could judge."""
        return bool(self.findings) and all(finding.ok for finding in self.findings)

    @property
    def refused_by(self) -> tuple[str, ...]:
        """The judges that refuse, in their order."""
        against = {finding.judge for finding in self.findings if finding.ok is False}
        return tuple(judge for judge in JUDGES if judge in against)

    def of(self, judge: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.judge == judge)

    def refusals(self) -> str:
        """What was refused and why, one line each; "" where nothing was. For an assertion's message."""
        against = [finding for finding in self.findings if finding.ok is not True]
        return "\n".join(f"{finding.judge}: {finding.message}" for finding in against)


def to_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


def from_data(data: Iterable[dict[str, Any]]) -> tuple[Finding, ...]:
    return tuple(Finding(**entry) for entry in data)
