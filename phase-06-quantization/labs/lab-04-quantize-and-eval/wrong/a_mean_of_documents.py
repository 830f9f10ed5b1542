"""A mean over the documents.

A text of three tokens weighs as much as one of three hundred, so each of its tokens weighs a hundred times
as much.

Refused by `test_every_token_counts_once`.
"""

from course.learner.edited import edited

CHANGE = """
perplexity
- return math.exp(sum(nats) / sum(tokens))
+ return math.exp(sum(n / t for n, t in zip(nats, tokens, strict=True)) / len(nats))
"""

exec(edited(__file__, CHANGE))
