"""The result is a view of the graph's output, without a copy.

A graph writes every result to the same address. Who holds the first step's rows while the second runs finds
the second's.

Refused by `test_a_result_belongs_to_the_caller`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.run
- result: Tensor = hidden_states[:num_tokens].clone()
+ result: Tensor = hidden_states[:num_tokens]
"""

exec(edited(__file__, CHANGE))
