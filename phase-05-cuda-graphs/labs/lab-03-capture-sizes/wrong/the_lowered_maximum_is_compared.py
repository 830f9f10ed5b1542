"""The user's maximum is lowered to the step first, and then compared with the user's sizes.

Lowered it may agree by chance. vLLM compares the number that was given.

Refused by `test_the_maximum_is_compared_as_it_was_given`.
"""

from course.learner.edited import edited

CHANGE = """
capture_sizes
- if max_cudagraph_capture_size not in (None, largest):
+ if max_cudagraph_capture_size is not None and top != largest:
"""

exec(edited(__file__, CHANGE))
