"""`python -m course.docs`."""

from course.door import run_module

raise SystemExit(run_module("course.docs.command", "app"))
