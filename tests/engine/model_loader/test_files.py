"""Which files of a folder are read, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_vllm.model_loader import CheckpointError, load_model
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.models.checkpoint_files import POINTER, shipped
from tests.engine.helpers.models.checkpoint_formats import LAYOUTS, make_folder

ANOTHER = ["an_untied_head_is_another"]
"""What a user asks for, and another model than the shipped one."""


def test_a_tokenizer_that_is_a_pointer(tmp_path: Path) -> None:
    """Large ones lie in git-lfs, too."""
    folder = make_folder("one_file", tmp_path / "model")
    (folder / "tokenizer.json").write_bytes(POINTER)
    with pytest.raises(ValueError, match=r"tokenizer\.json .*git-lfs pointer"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_is_read_right_or_refused_in_these_words(name: str, tmp_path: Path) -> None:
    words = LAYOUTS[name].words
    folder = make_folder(name, tmp_path / "model")
    if words:
        with pytest.raises(CheckpointError) as caught:
            load_model(folder)
        for word in (str(folder), *words):
            assert word in str(caught.value), str(caught.value)
        assert "\n" not in str(caught.value)
        return
    model = load_model(folder)
    embedding = shipped()["model.embed_tokens.weight"]
    np.testing.assert_array_equal(model.embed_tokens, embedding)
    same = np.array_equal(model.lm_head.weight, embedding)
    assert same == (name not in ANOTHER)
    last = shipped()["model.layers.3.mlp.down_proj.weight"]
    np.testing.assert_array_equal(model.layers[3].mlp.down_proj.weight, last)
