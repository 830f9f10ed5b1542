"""The longest step is a rung wherever it lies.

With a step of 8,192 tokens that would be a graph of 8,192 tokens. It is a rung only where the ladder gets
there.

Refused by `test_the_default_ladder`.
"""

from course.learner.edited import edited

CHANGE = """
capture_sizes
- if top == max_num_batched_tokens:
-     sizes.add(top)
- return sorted(size for size in sizes if size <= top)
+ sizes = {size for size in sizes if size <= top}
+ return sorted({*sizes, max_num_batched_tokens})
"""

exec(edited(__file__, CHANGE))
