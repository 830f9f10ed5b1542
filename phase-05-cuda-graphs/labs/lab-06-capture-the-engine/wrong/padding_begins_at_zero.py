"""The ends of the requests of padding are filled with 0, like everything else.

A request of padding then ends before it begins. This attention does not look; a kernel that goes from a
request's first row to its last does. Who has no tokens begins and ends where the step ends.

Refused by `test_a_request_of_padding_has_no_tokens`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.fill
- self.query_start_loc, metadata.query_start_loc, num_reqs + 1, len(input_ids)
+ self.query_start_loc, metadata.query_start_loc, num_reqs + 1, 0
"""

exec(edited(__file__, CHANGE))
