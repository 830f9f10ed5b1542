"""The threshold is rounded up.

`//` rounds down. With 10 KV heads 12 requests are cut, and with 13 nobody is.

Refused by `test_the_threshold_is_rounded_down`.
"""

from course.learner.edited import edited

CHANGE = """
launch
- few = num_seqs <= 128 // num_kv_heads
+ few = num_seqs <= -(-128 // num_kv_heads)
"""

exec(edited(__file__, CHANGE))
