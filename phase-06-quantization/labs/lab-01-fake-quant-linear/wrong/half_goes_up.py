"""A tie is rounded up, as at school.

compressed-tensors rounds it to the even step, as numpy's rint does. A code that differs from a file's in a
tie is no worse, but the two can no longer be compared.

Refused by `test_codes_are_the_nearest_step_and_a_tie_goes_to_the_even_one`.
"""

from course.learner.edited import edited

CHANGE = """
quantize
- steps = np.rint(weight / scale)
+ steps = np.floor(weight / scale + 0.5)
"""

exec(edited(__file__, CHANGE))
