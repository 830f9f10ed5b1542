"""It takes them from the head and puts them back from the tail.

Equals come out the other way round: the last of them to come is served first.

Refused by `test_equals_stay_as_they_were`.
"""

from course.learner.edited import edited

CHANGE = """
reorder
  requests = [queue.pop_request() for _ in range(len(queue))]
+ requests.reverse()
"""

exec(edited(__file__, CHANGE))
