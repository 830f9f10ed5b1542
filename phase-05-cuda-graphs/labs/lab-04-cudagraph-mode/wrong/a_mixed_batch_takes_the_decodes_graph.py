"""A mixed batch is looked up as if it were uniform.

Forty tokens of three requests have another attention than forty decodes, though they are as many.

Refused by `test_a_mixed_batch_has_no_full_graph`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.dispatch
- uniform = uniform_decode and self.cudagraph_mode.separate_routine()
+ uniform = self.cudagraph_mode.separate_routine()
"""

exec(edited(__file__, CHANGE))
