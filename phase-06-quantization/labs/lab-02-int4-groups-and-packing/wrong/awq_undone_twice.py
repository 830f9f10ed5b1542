"""AWQ's order is applied again instead of undone.

The order is not its own inverse. Put nibble i where column AWQ_ORDER[i] is.

Refused by `test_words_lose_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
unpack_awq
- codes[:, :, list(AWQ_ORDER)] = nibbles
+ codes = nibbles[:, :, list(AWQ_ORDER)]
"""

exec(edited(__file__, CHANGE))
