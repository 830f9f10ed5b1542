"""The keys are cut in a prefill as well.

The segmented form has one row a request. One longer query in the step, and all of it goes the other way.

Refused by `test_segments_for_few_who_decode`.
"""

from course.learner.edited import edited

CHANGE = """
launch
- if max_query_len == 1 and few and not batch_invariant:
+ if few and not batch_invariant:
"""

exec(edited(__file__, CHANGE))
