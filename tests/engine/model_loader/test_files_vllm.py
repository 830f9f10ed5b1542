"""Which files real vLLM reads of the same folders: each layout's answer, held to what it says of vLLM.

Where ours is another, it is a refusal, and `Layout.words` has it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_vllm.model_loader import CheckpointError, load_model
from tests.engine.helpers.models.checkpoint_files import SHARDS, halves, write_index
from tests.engine.helpers.models.checkpoint_formats import LAYOUTS, make_folder
from tests.engine.helpers.real_vllm.vllm_helpers import read_by_vllm

pytestmark = pytest.mark.vllm
Digests = dict[str, str]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Digests | str]:
    """By layout, a digest of each parameter of vLLM's model, or its error."""
    root = tmp_path_factory.mktemp("files")
    folders = [make_folder(name, root / name) for name in LAYOUTS] + write_pickles(root)
    answers = read_by_vllm(root, folders)
    return {n: a if isinstance(a, str) else a["digests"] for n, a in answers.items()}


def write_pickles(root: Path) -> list[Path]:
    """Two folders of pickles, one with an index of the other kind, which vLLM then does not open."""
    import torch

    folders = [make_folder("one_file", root / name) for name in ("pickles", "pickles-index")]
    for folder in folders:
        (folder / "model.safetensors").unlink()
        for i, half in enumerate(halves()):
            tensors = {name: torch.from_numpy(array.copy()) for name, array in half.items()}
            torch.save(tensors, folder / f"pytorch_model-{i}.bin")
    write_index(folders[1], {"model.norm.weight": SHARDS[0]})
    return folders


def classify(answer: Digests | str, right: Digests | str) -> str:
    if isinstance(answer, str):
        return "refused"
    assert isinstance(right, dict)
    # A head that is not tied is the embedding once more.
    head = answer.pop("lm_head.weight", right["model.embed_tokens.weight"])
    same = answer == right and head == right["model.embed_tokens.weight"]
    return "right" if same else "another"


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_vllm_makes_of_a_folder(name: str, read: dict[str, Digests | str]) -> None:
    got = classify(read[name], read["one_file"])
    assert got == LAYOUTS[name].vllm, read[name]


@pytest.mark.parametrize("name", ["pickles", "pickles-index"])
def test_vllm_reads_pickles(name: str, read: dict[str, Digests | str], tmp_path: Path) -> None:
    assert classify(read[name], read["one_file"]) == "right", read[name]
    folder = next(folder for folder in write_pickles(tmp_path) if folder.name == name)
    with pytest.raises(
        CheckpointError,
        match=r"pytorch_model-0\.bin.*pickles|is no \*\.safetensors|names the shard",
    ):
        load_model(folder)
