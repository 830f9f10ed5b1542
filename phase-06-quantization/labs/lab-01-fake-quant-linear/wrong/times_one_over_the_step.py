"""The weight is multiplied by one over the step.

One over the step is rounded, and the product once more. So what lies half between two codes may go to
either, and the codes are no longer those of compressed-tensors, which divides.

Refused by `test_codes_are_the_nearest_step_and_a_tie_goes_to_the_even_one`.
"""

from course.learner.edited import edited

CHANGE = """
quantize
- steps = np.rint(weight / scale)
+ steps = np.rint(weight * (np.float32(1) / scale))
"""

exec(edited(__file__, CHANGE))
