"""The last token made is run too, and both formulas count it: P + n with the cache.

A token is run to predict the one after it. Nobody asks for a token after the last one, so nobody
needs its K and V: n new tokens take n passes, and the first pass is the prompt's. Write out the
passes for n = 1.

Refused by `test_with_cache_runs_each_token_once`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)
Generation = solution.Generation
new_kv_caches = solution.new_kv_caches
attention_metadata = solution.attention_metadata


def generate_with_cache(model: Any, prompt_ids: Any, num_new_tokens: int) -> Any:
    generation = Generation()
    kv_caches = new_kv_caches(model, len(prompt_ids) + num_new_tokens)
    new_ids, length = list(prompt_ids), 0
    for i in range(num_new_tokens + 1):
        positions = np.arange(length, length + len(new_ids))
        length += len(new_ids)
        metadata = attention_metadata(len(new_ids), length)
        hidden = model.forward(np.array(new_ids), positions, kv_caches, metadata)
        generation.kv_computed.append(len(new_ids))
        if i < num_new_tokens:
            new_ids = [int(model.compute_logits(hidden[-1:])[0].argmax())]
            generation.token_ids += new_ids
    return generation


def work_without_cache(prompt_len: int, num_new_tokens: int) -> int:
    return sum(range(prompt_len, prompt_len + num_new_tokens + 1))


def work_with_cache(prompt_len: int, num_new_tokens: int) -> int:
    return prompt_len + num_new_tokens


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
