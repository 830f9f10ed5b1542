"""`python -m course` is the command `course`."""

from course.learner.cli import main

raise SystemExit(main())
