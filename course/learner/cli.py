"""The `course` command: the way in. What it can do stands in `course.learner.commands`."""

from __future__ import annotations

import importlib.util
import io
import sys

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 graded and not passed, 2 could not be done, 130 Ctrl-C."""
    # Nothing is imported before this line, so that Ctrl-C while it loads ends in one line too.
    try:
        from mini_vllm.entrypoints.cli.door import drop, is_interrupt, reader_left

        try:
            status = _run(argv)
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            drop(sys.stdout)
            if reader_left(error):
                return 0
            print(f"course: {error}", file=sys.stderr)
            return 2
        except ImportError as error:
            if not is_interrupt(error):
                raise
            status = INTERRUPTED
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        print("course: interrupted", file=sys.stderr)
    return status


def _run(argv: list[str] | None) -> int:
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"course: {' and '.join(missing)} missing. Install the course's tools: "
            'uv sync --extra course, or pip install -e ".[course]"',
            file=sys.stderr,
        )
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Here, so that Ctrl-C while they load ends in one line too.
    from course.learner.commands import app
    from course.learner.labs import CourseError

    try:
        app(args=argv, prog_name="course")
    except CourseError as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
