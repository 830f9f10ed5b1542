"""It sorts, the largest key first.

The smallest key is tried first.

Refused by `test_the_smallest_key_comes_first`.
"""

from course.learner.edited import edited

CHANGE = """
reorder
- for request in sorted(requests, key=lambda request: policy(request, now)):
+ for request in sorted(requests, key=lambda request: policy(request, now), reverse=True):
"""

exec(edited(__file__, CHANGE))
