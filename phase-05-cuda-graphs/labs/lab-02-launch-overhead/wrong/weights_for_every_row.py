"""It reads the weights once a row.

They are read once a step, however many rows there are. That is why 40 rows cost no more than 33.

Refused by `test_the_card_is_lab_00_04s`.
"""

from course.learner.edited import edited

CHANGE = """
device_time
- size = model.params * model.bytes_per_param + kv_tokens * model.kv_bytes_per_token
+ size = rows * model.params * model.bytes_per_param + kv_tokens * model.kv_bytes_per_token
"""

exec(edited(__file__, CHANGE))
