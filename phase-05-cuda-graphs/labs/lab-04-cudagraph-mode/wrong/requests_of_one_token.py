"""A uniform key has one request for each row.

With drafts four rows are one request, and attention was recorded for that.

Refused by `test_full_keys_in_whole_requests`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher._descriptor
- num_reqs = padded // self.uniform_decode_query_len if uniform else padded
+ num_reqs = padded
"""

exec(edited(__file__, CHANGE))
