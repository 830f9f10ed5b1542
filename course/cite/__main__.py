"""`python -m course.cite`."""

from course.cite.command import app

app()
