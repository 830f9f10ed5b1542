"""Of a turn only the prompt is in the cache.

The answer's tokens were computed too, one in each step, and fill blocks as others do.

Refused by `test_conversation`.
"""

from course.learner.edited import edited

CHANGE = """
conversation
- computed = said - 1
+ computed = prompt
"""

exec(edited(__file__, CHANGE))
