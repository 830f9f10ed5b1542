"""Prompts are compared without their salts.

A salt goes into the hash of the first block, and so into the whole chain: other salt, other blocks.

Refused by `test_who_pays_what`.
"""

from course.learner.edited import edited

CHANGE = """
scheduled_tokens
- if other.salt == ask.salt
"""

exec(edited(__file__, CHANGE))
