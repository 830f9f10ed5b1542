"""`python -m course.docs`."""

from course.docs.command import app

app()
