"""It sorts a copy of the queue.

The scheduler goes on with its own queue, which nobody has touched.

Refused by `test_the_smallest_key_comes_first`.
"""

from course.learner.edited import edited

CHANGE = """
reorder
- requests = [queue.pop_request() for _ in range(len(queue))]
- for request in sorted(requests, key=lambda request: policy(request, now)):
-     queue.add_request(request)
+ requests = list(queue)
+ requests.sort(key=lambda request: policy(request, now))
"""

exec(edited(__file__, CHANGE))
