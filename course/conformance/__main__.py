"""`python -m course.conformance`."""

from course.conformance.command import main

raise SystemExit(main())
