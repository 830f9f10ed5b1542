"""Whoever has waited too long gets a number for a key, and the others a tuple.

Both sort well among themselves, and a number cannot be compared with a tuple. It shows only when both wait.

Refused by `test_a_policy_reads_and_no_more`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- return (0, request.arrival_time)
+ return 0
"""

exec(edited(__file__, CHANGE))
