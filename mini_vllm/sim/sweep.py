"""A grid of settings, and the file that its rows are written to.

Mirrors `vllm/benchmarks/sweep/param_sweep.py:8 ParameterSweep`: a list of combinations, each a dict of
flags, and the product of several such lists. Upstream keeps a file per run and skips those that it finds
when it resumes (`vllm/benchmarks/sweep/serve.py:66 run_benchmark`); here one file has a line per run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mini_vllm.utils.untrusted import decode, parse_json, read_bytes, shorten_repr

MOST_POINTS = 100_000
BENCHMARK_NAME = "_benchmark_name"
"""The name of a combination, which is no flag, in vLLM's files of parameters."""

Combination = dict[str, Any]


def read_params(flag: str, path: Path) -> list[Combination]:
    """The combinations of a file as vLLM's sweep reads it: a list of dicts, or a dict of named ones.

    Raises ValueError that begins with `flag` and the path, OSError.
    Source: `vllm/benchmarks/sweep/param_sweep.py:10 ParameterSweep.read_json`.
    """
    where = f"{flag} {shorten_repr(str(path))}"
    try:
        data = parse_json(decode(read_bytes(path)))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if isinstance(data, dict) and all(isinstance(value, dict) for value in data.values()):
        data = [{BENCHMARK_NAME: name, **value} for name, value in data.items()]
    if not isinstance(data, list) or not data or not all(isinstance(row, dict) for row in data):
        raise ValueError(
            f"{where}: must be a list of objects, or an object of named ones, and not empty"
        )
    return data


def expand(axes: Sequence[Sequence[Combination]]) -> list[Combination]:
    """Every combination of the axes' combinations, the last axis first to change.

    Raises ValueError for a name that stands in two axes, and for more than `MOST_POINTS`.
    """
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_POINTS:
        raise ValueError(
            f"the sweep would have {shorten_repr(count)} points: at most {MOST_POINTS}"
        )
    points: list[Combination] = [{}]
    for axis in axes:
        grown: list[Combination] = []
        for point in points:
            for combination in axis:
                twice = [name for name in combination if name in point and name != BENCHMARK_NAME]
                if twice:
                    raise ValueError(f"{shorten_repr(twice[0])} is set in two places of the sweep")
                names = [c[BENCHMARK_NAME] for c in (point, combination) if BENCHMARK_NAME in c]
                named = {BENCHMARK_NAME: "-".join(map(str, names))} if names else {}
                grown.append({**named, **point, **combination, **named})
        points = grown
    return points


class Journal:
    """The rows that are done, by what identifies them; on disk a line each, as they come.

    A line that was cut off, because the sweep ended while it was written, does not count. `close` puts
    the lines into the order of the sweep: what is in the file then does not depend on which point ended
    first.

    Args:
        path: the file; None keeps the rows in memory alone.
        keys: of all rows that belong to the sweep, in its order.
        key_of: of a row.
        resume: go on with what the file has. Otherwise there must be no file.

    Raises ValueError that names the file: it is there, or has a row that is none of this sweep's. OSError.
    """

    def __init__(
        self,
        path: Path | None,
        keys: Sequence[str],
        key_of: Callable[[dict[str, Any]], str],
        resume: bool = False,
    ) -> None:
        self.lines: dict[str, str] = {}
        self._path = path
        self._keys = keys
        if path is None:
            self._file = None
            return
        self._name = shorten_repr(str(path))
        if path.exists() and not resume:
            raise ValueError(
                f"--json {self._name} exists: --resume goes on with it; or give another name"
            )
        end = self._read(path, key_of) if path.exists() else 0
        self._file = path.open("ab")
        self._file.truncate(end)

    def _read(self, path: Path, key_of: Callable[[dict[str, Any]], str]) -> int:
        """Take in the whole lines; how many bytes they are."""
        known = set(self._keys)
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].splitlines(), 1):
            where = f"--resume: line {number} of {self._name}"
            try:
                row = parse_json(line)
                key = key_of(row)
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"{where} is no row of a sweep") from None
            if key not in known:
                raise ValueError(f"{where} is of another sweep: {shorten_repr(key, 200)}")
            if "error" not in row:  # what failed is tried again
                self.lines[key] = decode(line)
        return end

    def add(self, key: str, line: str) -> None:
        """A row is done. It is on its way to the disk when this returns."""
        self.lines[key] = line
        if self._file is not None:
            self._file.write(line.encode() + b"\n")
            self._file.flush()

    def rows(self) -> list[dict[str, Any]]:
        """The rows that are done, in the sweep's order."""
        return [json.loads(self.lines[key]) for key in self._keys if key in self.lines]

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Bring the file into order. It is replaced whole, so a crash leaves the old one or the new."""
        if self._file is None or self._path is None:
            return
        self._file.close()
        self._file = None
        sorted_lines = [self.lines[key] for key in self._keys if key in self.lines]
        beside = self._path.with_name(self._path.name + ".tmp")
        beside.write_bytes("".join(f"{line}\n" for line in sorted_lines).encode())
        os.replace(beside, self._path)  # noqa: PTH105  # as its own documentation says: atomic
