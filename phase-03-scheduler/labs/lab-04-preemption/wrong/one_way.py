"""The blocks are copied out, and are back for nothing.

The link is taken a second time when the victim returns.

Refused by `test_out_and_in`.
"""

from course.learner.edited import edited

CHANGE = """
swap_ms
- return 2 * kv_bytes(num_tokens, model) / link.bandwidth * 1e3
+ return kv_bytes(num_tokens, model) / link.bandwidth * 1e3
"""

exec(edited(__file__, CHANGE))
