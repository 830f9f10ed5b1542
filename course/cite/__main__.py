"""`python -m course.cite`."""

from course.door import run_module

raise SystemExit(run_module("course.cite.command", "app"))
