"""An lse of +inf is taken at its word.

FlashAttention 2 says +inf for a row that saw no key. Taken as a number it outweighs all others, and the
output beside it is garbage. Whatever is not finite has no key.

Refused by `test_from_output_and_lse`.
"""

from course.learner.edited import edited

CHANGE = """
from_lse
- some = np.isfinite(lse)
+ some = lse > -np.inf
"""

exec(edited(__file__, CHANGE))
