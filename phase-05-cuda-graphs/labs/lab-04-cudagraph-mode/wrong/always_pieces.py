"""What is lowered falls to pieces, whether there are any or not.

Without compilation the model is one piece, with attention in it.

Refused by `test_without_pieces`.
"""

from course.learner.edited import edited

CHANGE = """
resolve_cudagraph_mode
- mode = PIECEWISE if is_attention_compiled_piecewise else NONE
+ mode = PIECEWISE
"""

exec(edited(__file__, CHANGE))
