from course.fuzz.command import main

raise SystemExit(main())
