"""A sliding window takes FLASH_ATTN out.

Look through the fields of `Config`: there is none for a window. The backend is chosen without, and has to
cope with the window afterwards.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "a sliding window on an L4": facts.Guess("FLASH_ATTN"),
+ "a sliding window on an L4": facts.Guess("TRITON_ATTN", facts.ATTN_TYPE["decoder"]),
"""

exec(edited(__file__, CHANGE))
