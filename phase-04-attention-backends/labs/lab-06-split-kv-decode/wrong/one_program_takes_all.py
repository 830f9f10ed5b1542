"""The first program of a sequence takes all keys, and the other splits do nothing.

The result is right, and a lone long sequence still keeps one multiprocessor a KV head busy, which is what
splitting is there to change.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
split_kernel
- if start >= seq_len:
-     return
- end = tl.minimum(start + keys_per_split, seq_len)
+ if split > 0:
+     return
+ end = seq_len

merge_kernel
- used = tl.cdiv(tl.load(seq_lens_ptr + seq), keys_per_split)
+ used = 1
"""

exec(edited(__file__, CHANGE))
