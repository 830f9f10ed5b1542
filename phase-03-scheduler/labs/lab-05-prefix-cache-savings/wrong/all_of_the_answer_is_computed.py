"""An answer of 4 tokens is computed with 4.

The last token is sampled, and then the request is over: nobody computes its keys and values.

Refused by `test_without_caching_everybody_pays`.
"""

from course.learner.edited import edited

CHANGE = """
scheduled_tokens
- counts.append(missing + ask.num_answer_tokens - 1)
+ counts.append(missing + ask.num_answer_tokens)
"""

exec(edited(__file__, CHANGE))
