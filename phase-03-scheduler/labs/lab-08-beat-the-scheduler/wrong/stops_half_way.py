"""It takes out for as long as more is in the queue than in the list.

Taking out makes the queue shorter while the list grows, so half of them stay where they were, in
front of those that were sorted.

Refused by `test_nobody_is_lost_and_nobody_comes_twice`.
"""

from course.learner.edited import edited

CHANGE = """
reorder
- requests = [queue.pop_request() for _ in range(len(queue))]
+ requests = []
+ while len(queue) > len(requests):
+     requests.append(queue.pop_request())
"""

exec(edited(__file__, CHANGE))
