"""It leaves those in front whom the engine put there after a preemption.

Who is preempted waits like the others: `reorder` orders by the policy alone.

Refused by `test_a_preempted_one_has_no_place_of_its_own`.
"""

from course.learner.edited import edited

CHANGE = """
reorder
- for request in sorted(requests, key=lambda request: policy(request, now)):
+ key = lambda request: (not request.num_preemptions, policy(request, now))
+ for request in sorted(requests, key=key):
"""

exec(edited(__file__, CHANGE))
