"""The global scale is what a reader multiplies with.

Some files keep it so. Here numbers are multiplied by it before they are quantised, so a tensor of small
numbers has a large one.

Refused by `test_the_scale_of_the_whole_tensor`.
"""

from course.learner.edited import edited

CHANGE = """
choose_global_scale
- return 448 * 6 / largest
+ return largest / (448 * 6)
"""

exec(edited(__file__, CHANGE))
