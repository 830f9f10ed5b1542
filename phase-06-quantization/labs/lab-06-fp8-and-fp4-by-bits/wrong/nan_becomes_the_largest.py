"""With `saturate` NaN becomes the largest number.

vLLM's CPU build on x86 does that in an FP8 KV cache. A NaN means that something broke before, and 448
hides it.

Refused by `test_nan_is_no_large_number`.
"""

from course.learner.edited import edited

CHANGE = """
encode
- if fmt.specials == "none":
+ if saturate:
+     return largest
+ if fmt.specials == "none":
"""

exec(edited(__file__, CHANGE))
