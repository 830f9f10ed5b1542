"""The first piece and all that follows are captured as one graph, with the attention of a mixed batch inside.

This attention walks over the requests, and asks the device how long each is. In a capture nobody answers.

Refused by `test_mixed_batches_run_in_pieces`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.capture_full
- num_decodes=size,
- max_query_len=1,
+ num_decodes=0,
+ max_query_len=size,
"""

exec(edited(__file__, CHANGE))
