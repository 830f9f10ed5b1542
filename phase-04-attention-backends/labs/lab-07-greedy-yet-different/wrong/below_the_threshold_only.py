"""At the threshold itself the keys are not cut any more.

The launcher goes to one program where there are more requests than the threshold. At it, keys are still cut.

Refused by `test_segments_for_few_who_decode`.
"""

from course.learner.edited import edited

CHANGE = """
launch
- few = num_seqs <= 128 // num_kv_heads
+ few = num_seqs < 128 // num_kv_heads
"""

exec(edited(__file__, CHANGE))
