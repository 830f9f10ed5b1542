"""`python -m course.conformance`."""

from course.door import run_module

raise SystemExit(run_module("course.conformance.command", "main"))
