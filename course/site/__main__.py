"""`python -m course.site`."""

from course.site.command import app

app()
