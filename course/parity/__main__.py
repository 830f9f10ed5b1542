"""`python -m course.parity`."""

from course.door import run_module

raise SystemExit(run_module("course.parity.decisions", "main"))
