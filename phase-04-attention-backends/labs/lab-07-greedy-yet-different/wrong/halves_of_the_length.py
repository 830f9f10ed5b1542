"""The terms are cut into halves by their number.

A row that sees one key more is cut elsewhere, so hidden keys at the end change the sum. Count places from
the first term, or fill up with zeros to a size at which halves fall on halves.

Refused by `test_zeros_behind_change_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
fixed_sum
- size = 1
- while size < length:
-     size *= 2
+ size = length + length % 2 if length > 1 else 1
  left = np.zeros((*terms.shape[:-1], size), np.float32)

fixed_sum
- size //= 2
- left = left[..., :size] + left[..., size:]
+ left = np.concatenate([left, np.zeros((*left.shape[:-1], size % 2), np.float32)], axis=-1)
+ size = (size + 1) // 2
+ left = left[..., :size] + left[..., size:]
"""

exec(edited(__file__, CHANGE))
