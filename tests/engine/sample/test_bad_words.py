"""Words that are not to be generated: as token ids, in the logits, and to the user."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import apply_bad_words
from mini_vllm.sample.sampler import Sampler
from tests.engine.helpers.sampling.sampler_helpers import Row, random_logits


class Letters:
    """A tokenizer of one token a letter, where a space joins the letter behind it."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        spaced = text.startswith(" ")
        ids = [ord(letter) for letter in text.strip()]
        return [ids[0] + 1000, *ids[1:]] if spaced and ids else ids


class Words(Letters):
    """A tokenizer in which a space is a token of its own."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]


def test_a_word_is_barred_as_it_stands_first_and_after_a_space() -> None:
    params = SamplingParams(bad_words=["ab", " c"])
    assert params.bad_words_token_ids is None
    params.update_from_tokenizer(Letters())
    assert params.bad_words_token_ids == [[97, 98], [1097, 98], [99], [1099]]


def test_a_form_of_more_tokens_is_left_out() -> None:
    params = SamplingParams(bad_words=["ab"])
    params.update_from_tokenizer(Words())
    assert params.bad_words_token_ids == [[97, 98]]


def test_the_last_token_is_barred_where_the_others_stand() -> None:
    logits = np.zeros((3, 6), np.float32)
    words = {0: [[1, 2, 3], [4]], 2: [[1, 2, 3], [2, 5], [0, 0, 0, 0]]}
    barred = apply_bad_words(logits, words, {0: [1, 3], 2: [9, 1, 2]})
    assert np.argwhere(np.isinf(barred)).tolist() == [[0, 4], [2, 3], [2, 5]]
    assert not np.isinf(logits).any(), "the input was changed"


def test_the_sampler_follows_outputs_as_they_grow() -> None:
    params = SamplingParams(temperature=0, bad_words=["ab"])
    params._bad_words_token_ids = [[3, 4]]
    row, free = Row(params), Row(SamplingParams(temperature=0))
    logits = random_logits(1, 2)
    logits[:, 4] = 99.0
    metadata = SamplingMetadata.build([row, free], logits.shape[1])
    assert Sampler()(logits, metadata).sampled_token_ids.tolist() == [4, 4]
    row.output_token_ids.append(3)
    free.output_token_ids.append(3)
    sampled = Sampler()(logits, metadata).sampled_token_ids
    assert sampled[0] != 4
    assert sampled[1] == 4


def test_nobody_without_bad_words_pays_for_them() -> None:
    assert SamplingMetadata.build([Row(SamplingParams())], 24).bad_words is None


def test_a_user_does_not_get_the_word() -> None:
    llm = LLM()
    greedy = SamplingParams(temperature=0, max_tokens=20)
    text = llm.generate("The KV cache", greedy)[0].outputs[0].text
    word = text.split()[1]
    params = SamplingParams(temperature=0, max_tokens=20, bad_words=[word])
    other = llm.generate("The KV cache", params)[0].outputs[0].text
    assert other != text
    assert word not in other.split()
    assert params.bad_words_token_ids is None, "the user's own parameters were changed"


def test_a_word_of_nothing_but_spaces_and_a_word_without_a_tokenizer_are_refused() -> None:
    llm = LLM()
    with pytest.raises(ValueError, match="bad_words must hold words, got '  '"):
        llm.generate("x", SamplingParams(bad_words=["  "]))
