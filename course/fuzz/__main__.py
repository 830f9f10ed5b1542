"""`python -m course.fuzz`."""

from course.door import run_module

raise SystemExit(run_module("course.fuzz.command", "main"))
