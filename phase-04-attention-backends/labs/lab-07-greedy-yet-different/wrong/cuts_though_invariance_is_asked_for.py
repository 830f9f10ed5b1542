"""The keys are cut, though invariance was asked for.

That is the one thing that VLLM_BATCH_INVARIANT changes in this launcher.

Refused by `test_segments_for_few_who_decode`.
"""

from course.learner.edited import edited

CHANGE = """
launch
- if max_query_len == 1 and few and not batch_invariant:
+ if max_query_len == 1 and few:
"""

exec(edited(__file__, CHANGE))
