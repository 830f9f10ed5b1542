"""Row r is taken for head r // GROUP and token r % GROUP.

There are GROUP heads, and row // GROUP counts the tokens. The matrix has as many rows either way, so
the shapes fit, but most rows are heads of another KV head.

Refused by `test_chunks_are_right`.
"""

from course.learner.edited import edited

CHANGE = """
prefill_kernel
- token = first_token + row // GROUP
- head = kv_head * GROUP + row % GROUP
+ token = first_token + row % GROUP
+ head = kv_head * GROUP + row // GROUP
"""

exec(edited(__file__, CHANGE))
