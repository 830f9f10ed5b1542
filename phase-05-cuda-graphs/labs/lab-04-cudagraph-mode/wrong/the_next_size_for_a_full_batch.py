"""FULL graphs go on to the size that holds a full batch of `max_num_seqs`.

It would be the better rule: 33 of 33 would have a FULL graph of 40. At the pin they do not.

Refused by `test_the_keys_of_each_mode`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.__init__
- fits = uniform_decode_query_len <= size <= largest
+ fits = uniform_decode_query_len <= size <= self.padded_to[min(largest, len(self.padded_to) - 1)]
"""

exec(edited(__file__, CHANGE))
