"""`python -m course.parity`."""

from course.parity.decisions import main

raise SystemExit(main())
