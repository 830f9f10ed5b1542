"""One whole request is a size in any case.

It is added only where nothing else is left: a ladder of 3 and 5 in requests of two is 4 alone.

Refused by `test_vllm_leaves_the_same_with_drafts`.
"""

from course.learner.edited import edited

CHANGE = """
adjust_cudagraph_sizes_for_spec_decode
- if not fits and uniform_decode_query_len <= top:
-     fits = [uniform_decode_query_len]
+ if uniform_decode_query_len <= top:
+     fits = sorted({*fits, uniform_decode_query_len})
"""

exec(edited(__file__, CHANGE))
