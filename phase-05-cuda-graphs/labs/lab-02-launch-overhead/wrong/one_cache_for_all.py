"""It reads the context once for all requests.

Each has a cache of its own.

Refused by `test_where_graphs_stop_to_matter`.
"""

from course.learner.edited import edited

CHANGE = """
first_batch_without_gain
- if device_time(card, model, batch, batch * context) >= launching_s:
+ if device_time(card, model, batch, context) >= launching_s:
"""

exec(edited(__file__, CHANGE))
