"""Everybody is compared with the first request.

The index holds the blocks of all who came before. Somebody in the middle may share more.

Refused by `test_who_pays_what`.
"""

from course.learner.edited import edited

CHANGE = """
scheduled_tokens
- for other, granted in earlier
+ for other, granted in earlier[:1]
"""

exec(edited(__file__, CHANGE))
