"""It keeps K and V for every query head.

There is one K and one V for each KV head; that is what GQA is for.

Refused by `test_room_for_people`.
"""

from course.learner.edited import edited

CHANGE = """
kv_bytes_per_token
- return 2 * model.layers * model.kv_heads * model.head_size * kv_bytes
+ return 2 * model.layers * model.heads * model.head_size * kv_bytes
"""

exec(edited(__file__, CHANGE))
