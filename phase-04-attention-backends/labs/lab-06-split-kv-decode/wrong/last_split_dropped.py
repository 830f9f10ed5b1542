"""The number of splits is rounded down.

The last split of a sequence is rarely full, and it holds the newest tokens, the one of this step among them.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
merge_kernel
- used = tl.cdiv(tl.load(seq_lens_ptr + seq), keys_per_split)
+ used = tl.maximum(tl.load(seq_lens_ptr + seq) // keys_per_split, 1)
"""

exec(edited(__file__, CHANGE))
