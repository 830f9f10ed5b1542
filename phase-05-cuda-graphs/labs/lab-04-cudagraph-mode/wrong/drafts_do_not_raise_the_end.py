"""FULL keys end at `max_num_seqs` rows.

They end at that many requests, and each has its drafts.

Refused by `test_full_keys_in_whole_requests`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.__init__
- largest = uniform_decode_query_len * max_num_seqs
+ largest = max_num_seqs
"""

exec(edited(__file__, CHANGE))
