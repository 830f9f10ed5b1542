"""The rungs are sorted.

The order of the first time is the order in which a lazy server would stall.

Refused by `test_only_what_is_stepped_on`.
"""

from course.learner.edited import edited

CHANGE = """
visited
- return list(dict.fromkeys(rungs))
+ return sorted(set(rungs))
"""

exec(edited(__file__, CHANGE))
