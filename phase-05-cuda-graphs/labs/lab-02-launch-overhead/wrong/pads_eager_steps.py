"""It pads without a graph.

Padding is there because a graph has one shape. Without a graph any shape will do.

Refused by `test_nothing_is_padded_without_a_graph`.
"""

from course.learner.edited import edited

CHANGE = """
decode_time
- rows = batch if mode == "NONE" or padded is None else padded
+ rows = batch if padded is None else padded
"""

exec(edited(__file__, CHANGE))
