"""`python -m course.drift`."""

from course.door import run_module

raise SystemExit(run_module("course.drift.command", "main"))
