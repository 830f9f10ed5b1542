"""Whoever has come before has published all of the prompt.

With a threshold the step gives a piece, and publishes the blocks that this piece fills. What comes in
the next step comes too late for those who were admitted in this one.

Refused by `test_who_pays_what`.
"""

from course.learner.edited import edited

CHANGE = """
scheduled_tokens
- earlier.append((ask, hit + min(missing, threshold or missing)))
+ earlier.append((ask, hit + missing))
"""

exec(edited(__file__, CHANGE))
