"""The last tile of a split is masked at the sequence's end, and not at the split's.

Where keys_per_split is a multiple of the tile, nobody notices. Elsewhere the next split's first keys count
twice.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
split_kernel
- valid = position < end
+ valid = position < seq_len
"""

exec(edited(__file__, CHANGE))
