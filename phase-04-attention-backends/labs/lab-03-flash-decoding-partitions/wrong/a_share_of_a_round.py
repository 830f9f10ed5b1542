"""The programs are divided by the multiprocessors, and the rest is not a round.

Of 136 programs on 132 multiprocessors four come second, and they take as long as the others did. Rounds are
whole.

Refused by `test_busiest`.
"""

from course.learner.edited import edited

CHANGE = """
busiest
- return -(-programs // num_sms) * -(-seq_len // num_splits)
+ return max(1, programs // num_sms) * -(-seq_len // num_splits)
"""

exec(edited(__file__, CHANGE))
