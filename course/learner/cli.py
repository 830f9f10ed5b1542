"""The `course` command: the way in. What it can do stands in `course.learner.commands`."""

from __future__ import annotations

import sys

from course.door import guarded


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 graded and not passed, 2 could not be done, 130 Ctrl-C."""
    return guarded("course", lambda: _run(argv))


def _run(argv: list[str] | None) -> int:
    from mini_vllm.utils.interrupt import AtOnce

    with AtOnce("course"):
        import importlib.util
        import io

        missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
        if missing:
            from mini_vllm.utils.extras import how_to_get

            what = f"{' and '.join(missing)} missing. Install the course's tools"
            print(f"course: {what}: {how_to_get('course')}", file=sys.stderr)
            return 2
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
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
