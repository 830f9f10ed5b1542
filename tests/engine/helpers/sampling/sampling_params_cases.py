"""Arguments of SamplingParams: what it takes, what it refuses and with which words."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

NAN, INF = math.nan, math.inf

# (arguments, what some attributes are afterwards)
GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 16, "stop": []}),
    (
        {},
        {"stop_token_ids": [], "seed": None, "logprobs": None, "skip_reading_prefix_cache": False},
    ),
    ({"n": 16384}, {"n": 16384}),
    ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2.0}),
    ({"repetition_penalty": 1e-3}, {"repetition_penalty": 1e-3}),
    ({"temperature": 0}, {"temperature": 0.0}),
    (
        {"temperature": 0, "top_p": 0.5, "top_k": 5, "min_p": 0.1},
        {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    ),
    ({"temperature": 1e-6, "n": 2, "top_p": 0.5}, {"temperature": 0.01, "top_p": 0.5}),
    ({"temperature": 1e-5}, {"temperature": 0.01}),
    ({"temperature": 0.0099}, {"temperature": 0.01}),
    ({"temperature": 0.01}, {"temperature": 0.01}),
    ({"temperature": 50}, {"temperature": 50.0}),
    ({"temperature": np.float32(0.5), "top_p": Fraction(1, 2)}, {"temperature": 0.5, "top_p": 0.5}),
    ({"top_p": 1e-9}, {"top_p": 1e-9}),
    ({"top_k": -1}, {"top_k": -1}),
    ({"top_k": 10**9}, {"top_k": 10**9}),
    ({"min_p": 1}, {"min_p": 1.0}),
    ({"seed": -1}, {"seed": None}),
    ({"seed": 0}, {"seed": 0}),
    ({"seed": -5}, {"seed": -5}),
    ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
    ({"stop": "ab"}, {"stop": ["ab"], "output_text_buffer_length": 1}),
    ({"stop": ["a", "xyz"]}, {"stop": ["a", "xyz"], "output_text_buffer_length": 2}),
    ({"stop": "abc", "include_stop_str_in_output": True}, {"output_text_buffer_length": 0}),
    ({"stop": [], "detokenize": False}, {"stop": []}),
    ({"stop_token_ids": [5, 6]}, {"stop_token_ids": [5, 6], "all_stop_token_ids": {5, 6}}),
    ({"max_tokens": None, "min_tokens": 99}, {"max_tokens": None, "min_tokens": 99}),
    ({"max_tokens": 1, "min_tokens": 1}, {"max_tokens": 1}),
    ({"logprobs": True, "prompt_logprobs": False}, {"logprobs": 1, "prompt_logprobs": 0}),
    ({"logprobs": 0}, {"logprobs": 0}),
    ({"logprobs": -1}, {"logprobs": -1}),
    ({"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}),
    (
        {"prompt_logprobs": 2, "skip_reading_prefix_cache": False},
        {"skip_reading_prefix_cache": False},
    ),
    ({"logit_bias": {}}, {"logit_bias": {}}),
    ({"logit_bias": {5: 1000, 6: -INF}}, {"logit_bias": {5: 1000.0, 6: -INF}}),
    ({"allowed_token_ids": [1, 1]}, {"allowed_token_ids": [1, 1]}),
    ({"bad_words": None, "extra_args": None}, {"bad_words": []}),
    ({"bad_words": []}, {"bad_words": []}),
    ({"logprob_token_ids": [3, 1]}, {"logprob_token_ids": [3, 1]}),
    ({"extra_args": {"a": 1}}, {"extra_args": {"a": 1}}),
    ({"bad_words": ["x", " y"]}, {"bad_words": ["x", " y"]}),
    ({"spaces_between_special_tokens": False}, {"spaces_between_special_tokens": False}),
]

# (arguments, the error, words of its message). Refused here and by vLLM.
BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"n": 0}, ValueError, ["n must be at least 1", "got 0"]),
    ({"n": -3}, ValueError, ["got -3"]),
    ({"n": 1.0}, ValueError, ["n must be an integer", "1.0", "float"]),
    ({"n": "2"}, ValueError, ["'2'", "str"]),
    ({"n": 16385}, ValueError, ["16384", "16385", "VLLM_MAX_N_SEQUENCES"]),
    ({"n": 2, "temperature": 0}, ValueError, ["n must be 1", "greedy", "got 2"]),
    ({"presence_penalty": 2.1}, ValueError, ["presence_penalty", "[-2, 2]", "2.1"]),
    ({"presence_penalty": NAN}, ValueError, ["presence_penalty", "nan"]),
    ({"frequency_penalty": -2.5}, ValueError, ["frequency_penalty", "[-2, 2]", "-2.5"]),
    ({"frequency_penalty": INF}, ValueError, ["frequency_penalty", "inf"]),
    ({"repetition_penalty": 0}, ValueError, ["repetition_penalty", "above 0", "got 0.0"]),
    ({"repetition_penalty": -1}, ValueError, ["repetition_penalty", "-1.0"]),
    ({"temperature": -1}, ValueError, ["temperature", "negative", "-1.0"]),
    ({"temperature": -INF}, ValueError, ["temperature", "-inf"]),
    ({"temperature": "1"}, TypeError, ["temperature must be a number", "'1'", "str"]),
    ({"temperature": None}, TypeError, ["temperature", "None"]),
    ({"temperature": [1]}, TypeError, ["temperature", "[1]"]),
    ({"temperature": 1j}, TypeError, ["temperature", "complex"]),
    ({"top_p": 0}, ValueError, ["top_p must be in (0, 1]", "got 0.0"]),
    ({"top_p": 0.0, "temperature": 0}, ValueError, ["top_p"]),
    ({"top_p": 1.01}, ValueError, ["top_p", "1.01"]),
    ({"top_p": NAN}, ValueError, ["top_p", "nan"]),
    ({"top_p": "0.5"}, TypeError, ["top_p", "'0.5'"]),
    ({"top_k": -2}, ValueError, ["top_k", "0 (off) or at least 1", "-2"]),
    ({"top_k": 1.5}, TypeError, ["top_k must be an integer", "1.5"]),
    ({"top_k": "5"}, TypeError, ["top_k", "'5'"]),
    ({"top_k": np.int64(5)}, TypeError, ["top_k", "int64"]),
    ({"min_p": -0.1}, ValueError, ["min_p must be in [0, 1]", "-0.1"]),
    ({"min_p": 1.1}, ValueError, ["min_p", "1.1"]),
    ({"min_p": NAN}, ValueError, ["min_p", "nan"]),
    ({"stop": ""}, ValueError, ["stop", "empty string"]),
    ({"stop": ["a", ""]}, ValueError, ["stop", "['a', '']"]),
    ({"stop": 5}, TypeError, ["stop", "5", "list of strings"]),
    ({"stop": ["a", 3]}, TypeError, ["stop", "['a', 3]"]),
    ({"stop": "ab", "detokenize": False}, ValueError, ["stop=['ab']", "detokenize=True"]),
    ({"bad_words": [""]}, ValueError, ["bad_words", "empty string"]),
    ({"stop_token_ids": [1.0]}, ValueError, ["stop_token_ids", "[1.0]", "integers"]),
    ({"stop_token_ids": ["1"]}, ValueError, ["stop_token_ids", "['1']"]),
    ({"max_tokens": 0}, ValueError, ["max_tokens must be at least 1", "got 0"]),
    ({"max_tokens": "3"}, TypeError, ["max_tokens", "'3'"]),
    ({"min_tokens": -1}, ValueError, ["min_tokens", "-1"]),
    ({"min_tokens": 17}, ValueError, ["min_tokens", "max_tokens=16", "17"]),
    ({"min_tokens": None}, TypeError, ["min_tokens", "None"]),
    ({"logprobs": -2}, ValueError, ["logprobs", "-2"]),
    ({"logprobs": "1"}, TypeError, ["logprobs", "'1'"]),
    ({"prompt_logprobs": -2}, ValueError, ["prompt_logprobs", "-2"]),
    ({"best_of": 2}, TypeError, ["'best_of'", "It takes n, presence_penalty"]),
    ({"max_token": 3}, TypeError, ["'max_token'", "Did you mean 'max_tokens'"]),
    ({"temprature": 1}, TypeError, ["Did you mean 'temperature'"]),
]

# Refused here, while vLLM takes it: see the module's docstring.
STRICTER: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"temperature": NAN}, ValueError, ["temperature must be a finite number", "nan"]),
    ({"temperature": INF}, ValueError, ["temperature", "inf"]),
    ({"temperature": True}, TypeError, ["temperature", "True", "bool"]),
    ({"repetition_penalty": NAN}, ValueError, ["repetition_penalty", "nan"]),
    ({"repetition_penalty": INF}, ValueError, ["repetition_penalty", "inf"]),
    ({"repetition_penalty": 10**400}, ValueError, ["repetition_penalty", "finite"]),
    ({"n": True}, ValueError, ["n must be an integer", "True"]),
    ({"top_k": True}, TypeError, ["top_k", "True"]),
    ({"seed": "a"}, TypeError, ["seed must be an integer", "'a'"]),
    ({"seed": 1.5}, TypeError, ["seed", "1.5"]),
    ({"seed": 2**64}, ValueError, ["seed", str(2**64)]),
    ({"seed": -(2**63) - 1}, ValueError, ["seed", "-2**63"]),
    ({"max_tokens": 1.5}, TypeError, ["max_tokens", "1.5"]),
    ({"max_tokens": NAN}, TypeError, ["max_tokens", "nan"]),
    ({"min_tokens": 1.5}, TypeError, ["min_tokens", "1.5"]),
    ({"logprobs": 1.5}, TypeError, ["logprobs", "1.5"]),
    ({"logprobs": 1.0}, TypeError, ["logprobs", "1.0"]),
    ({"ignore_eos": "no"}, TypeError, ["ignore_eos must be True or False", "'no'"]),
    ({"ignore_eos": 1}, TypeError, ["ignore_eos", "1"]),
    ({"detokenize": None}, TypeError, ["detokenize", "None"]),
    ({"skip_special_tokens": 0}, TypeError, ["skip_special_tokens"]),
    ({"include_stop_str_in_output": "x"}, TypeError, ["include_stop_str_in_output"]),
    ({"skip_reading_prefix_cache": 1}, TypeError, ["skip_reading_prefix_cache"]),
    ({"output_kind": 0}, TypeError, ["output_kind", "RequestOutputKind", "0"]),
    ({"output_kind": "DELTA"}, TypeError, ["output_kind", "'DELTA'"]),
    ({"logit_bias": [1]}, TypeError, ["logit_bias", "[1]", "dict"]),
    ({"logit_bias": {"5": 1.0}}, TypeError, ["key of logit_bias", "'5'"]),
    ({"logit_bias": {5: "1"}}, TypeError, ["logit_bias[5]", "'1'"]),
    ({"logit_bias": {5: NAN}}, ValueError, ["logit_bias[5]", "nan"]),
    ({"logit_bias": {5: INF}}, ValueError, ["logit_bias[5]", "inf"]),
    ({"allowed_token_ids": (1,)}, TypeError, ["allowed_token_ids", "(1,)", "tuple"]),
    ({"allowed_token_ids": ["a"]}, ValueError, ["allowed_token_ids", "['a']"]),
    ({"stop_token_ids": [True]}, ValueError, ["stop_token_ids", "[True]"]),
    (
        {"flat_logprobs": True},
        ValueError,
        ["flat_logprobs=True", "mini_vllm has not, because", "False"],
    ),
    ({"spaces_between_special_tokens": 0}, TypeError, ["spaces_between_special_tokens"]),
    ({"thinking_token_budget": 5}, ValueError, ["thinking_token_budget=5"]),
]

# vLLM asserts here and we raise a TypeError: refused by both, with different types.
ASSERTED: list[dict[str, Any]] = [
    {"stop": ("a",)},
    {"bad_words": "x"},
    {"stop_token_ids": (1, 2)},
    {"stop_token_ids": 5},
]


def case_name(case: object) -> str | None:
    return repr(case) if isinstance(case, dict) else None


# (ignore_eos, stop_token_ids, the generation config's eos_token_id, the tokenizer's) and, after,
# (eos_token_id, stop_token_ids, all_stop_token_ids)
EOS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((False, [], None, None), (None, [], set())),
    ((False, [], None, 2), (2, [], {2})),
    ((False, [7], 2, 2), (2, [7], {2, 7})),
    ((False, [7], [2, 3], 2), (2, [3, 7], {2, 3, 7})),
    ((False, [3], [2, 3], 2), (2, [3], {2, 3})),
    ((False, [], [2, 3], None), (None, [2, 3], {2, 3})),
    ((True, [7], [2, 3], 2), (None, [7], {2, 3, 7})),
    ((True, [], 5, 2), (None, [], {2, 5})),
    ((False, [], 0, 2), (2, [0], {0, 2})),
]

# (arguments, max_logprobs, words of the message or None where it passes); the vocabulary has 264.
VERIFY: list[tuple[dict[str, Any], int, list[str] | None]] = [
    ({}, 20, None),
    ({"logprobs": 20, "prompt_logprobs": 0}, 20, None),
    ({"logprobs": 21}, 20, ["logprobs=21", "20"]),
    ({"prompt_logprobs": 21}, 20, ["prompt_logprobs=21", "20"]),
    ({"logprobs": -1}, 20, ["logprobs=-1", "20", "264"]),
    ({"logprobs": -1}, -1, None),
    ({"logprobs": -1}, 264, None),
    ({"logprobs": 264}, -1, None),
    ({"logprobs": 1}, 0, ["logprobs=1"]),
    ({"logprobs": 0}, 0, None),
    ({"logit_bias": {0: 1.0, 263: 1.0}}, 20, None),
    ({"logit_bias": {264: 1.0, 5: 1.0, -1: 2.0}}, 20, ["logit_bias", "[264, -1]", "0 to 263"]),
    ({"allowed_token_ids": []}, 20, ["allowed_token_ids", "[]"]),
    ({"allowed_token_ids": [263]}, 20, None),
    ({"allowed_token_ids": [1, 264]}, 20, ["allowed_token_ids", "[264]", "0 to 263"]),
    ({"allowed_token_ids": [-1]}, 20, ["allowed_token_ids", "[-1]"]),
    ({"stop_token_ids": [0, 263]}, 20, None),
]

# What vLLM's own verify lets through, to fail in a step (the second one in torch.topk).
VERIFY_STRICTER: list[tuple[dict[str, Any], str]] = [
    ({"stop_token_ids": [264, 1, -1]}, r"stop_token_ids .*\[264, -1\].*0 to 263"),
    ({"logprobs": 265}, r"logprobs=265 .*264"),
]
