"""`python -m course.site`."""

from course.door import run_module

raise SystemExit(run_module("course.site.command", "app", extra="site"))
