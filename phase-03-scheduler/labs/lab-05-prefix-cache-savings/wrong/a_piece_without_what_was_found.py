"""The threshold bounds what is published, and not what is computed of it.

Whoever finds 16 tokens and is given 16 more has 32, and the next one finds those.

Refused by `test_who_pays_what`.
"""

from course.learner.edited import edited

CHANGE = """
scheduled_tokens
- earlier.append((ask, hit + min(missing, threshold or missing)))
+ earlier.append((ask, max(hit, min(missing, threshold or missing))))
"""

exec(edited(__file__, CHANGE))
