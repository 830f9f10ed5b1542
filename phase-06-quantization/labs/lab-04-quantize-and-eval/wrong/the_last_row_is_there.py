"""Cut the last row off, because it has no answer.

vLLM has not sent it. Then the last token that was predicted goes with it.

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
