"""The last row is cut off, because it has no answer.

But vLLM has not sent that row. Then the last one has an answer, and the last predicted token is lost with it.

Refused by `test_the_last_row_may_be_missing`.
"""

from course.learner.edited import edited

CHANGE = """
surprise
- rows = np.arange(len(ids) - 1)
+ rows = np.arange(len(logprobs) - 1)
+ ids = ids[: len(logprobs)]
"""

exec(edited(__file__, CHANGE))
