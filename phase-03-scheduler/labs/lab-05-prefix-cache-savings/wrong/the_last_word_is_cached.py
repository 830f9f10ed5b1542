"""After a turn all that was said is in the cache.

The last token of the answer was sampled and never computed, so the block that it completes was not
published.

Refused by `test_conversation`.
"""

from course.learner.edited import edited

CHANGE = """
conversation
- computed = said - 1
+ computed = said
"""

exec(edited(__file__, CHANGE))
