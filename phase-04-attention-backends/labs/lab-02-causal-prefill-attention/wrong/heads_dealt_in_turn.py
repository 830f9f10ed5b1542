"""The query heads are dealt to the KV heads in turn.

Neighbours share: with 6 heads on 2 KV heads, 0, 1 and 2 read KV head 0. Every shape is the same either
way, and so is the way back.

Refused by `test_rows_of_a_kv_head_lie_together`.
"""

from course.learner.edited import edited

CHANGE = """
pack
- by_group = query.reshape(n, num_kv_heads, group, head_size).transpose(1, 0, 2, 3)
+ by_group = query.reshape(n, group, num_kv_heads, head_size).transpose(2, 0, 1, 3)

unpack
- by_group = rows.reshape(num_kv_heads, n, group, head_size).transpose(1, 0, 2, 3)
+ by_group = rows.reshape(num_kv_heads, n, group, head_size).transpose(1, 2, 0, 3)
"""

exec(edited(__file__, CHANGE))
