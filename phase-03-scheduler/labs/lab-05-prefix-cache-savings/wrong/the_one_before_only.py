"""Everybody is compared with the request just before.

The index holds the blocks of all who came before, not only of the last.

Refused by `test_who_pays_what`.
"""

from course.learner.edited import edited

CHANGE = """
scheduled_tokens
- for other, granted in earlier
+ for other, granted in earlier[-1:]
"""

exec(edited(__file__, CHANGE))
