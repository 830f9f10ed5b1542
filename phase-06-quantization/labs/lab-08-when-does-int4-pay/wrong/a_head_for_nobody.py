"""It reads the head where nobody asks for a token.

A chunk that is not a prompt's last has no row for it.

Refused by `test_the_head_is_16_bits`.
"""

from course.learner.edited import edited

CHANGE = """
head_seconds
- if rows == 0:
-     return 0.0, 0.0
  size = model.vocab * model.hidden
"""

exec(edited(__file__, CHANGE))
