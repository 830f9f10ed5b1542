"""It sorts pairs of key and request.

Where two keys are equal the requests are compared, by their priority. Equals are to stay in
the order in which they stand.

Refused by `test_equals_stay_as_they_were`.
"""

from course.learner.edited import edited

CHANGE = """
reorder
- for request in sorted(requests, key=lambda request: policy(request, now)):
+ for _, request in sorted((policy(request, now), request) for request in requests):
"""

exec(edited(__file__, CHANGE))
