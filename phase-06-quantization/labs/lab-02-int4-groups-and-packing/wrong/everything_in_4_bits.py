"""What is not quantised is counted as if it were.

Embedding and lm_head stay in 16 bits, and so do the norms: 2 bytes for each of their weights.

Refused by `test_the_card_of_an_8b_model`.
"""

from course.learner.edited import edited

CHANGE = """
card_bytes
- return layers + 2 * others
+ return layers + others // 2
"""

exec(edited(__file__, CHANGE))
