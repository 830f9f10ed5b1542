"""The codes are chosen for the scale before it goes into float16.

Whoever reads the file multiplies by the stored one. Round the scale first, then find the nearest code
on the grid that there will be.

Refused by `test_codes_are_those_of_the_engine`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_groups
- steps = groups / scale[:, :, None] + zero_point[:, :, None]
+ steps = groups / np.where(exact == 0, 1, exact)[:, :, None] + zero_point[:, :, None]
"""

exec(edited(__file__, CHANGE))
