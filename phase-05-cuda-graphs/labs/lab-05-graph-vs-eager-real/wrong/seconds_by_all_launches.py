"""The seconds saved are divided by all launches, not by those that are gone.

What is left costs as before. Only the difference was paid for with the launches that went.

Refused by `test_what_a_launch_was_worth`.
"""

from course.learner.edited import edited

CHANGE = """
cost_of_removed
- return median(slow - fast for slow, fast in pairs) / (before - after)
+ return median(slow - fast for slow, fast in pairs) / before
"""

exec(edited(__file__, CHANGE))
