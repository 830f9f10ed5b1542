"""The shipped tiny Llama with its files as people have them: leftovers, shards, pointers, others' files.

Each layout says what real vLLM makes of the folder and what `mini_vllm` does. `test_files.py` holds ours,
`test_files_vllm.py` theirs. More of them are in `checkpoint_formats.py`, which has all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader.safetensors_file import read_safetensors
from tests.engine.helpers.models.model_helpers import write_safetensors

Weights = Mapping[str, np.ndarray]
Answer = Literal["right", "another", "refused"]
"""The shipped model's text; another text, without a word; an error."""
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4665d5b9f1e2b2d3c7e5f1b1f3a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3\n"
    b"size 3289528\n"
)


@dataclass(frozen=True)
class Layout:
    """A folder of files.

    Attributes:
        make: changes a copy of the shipped model, whose weights lie in `model.safetensors`.
        vllm: what real vLLM answers.
        words: of our refusal. Empty: the right text.
    """

    make: Callable[[Path], None]
    vllm: Answer
    words: tuple[str, ...]


LAYOUTS: dict[str, Layout] = {}


def layout(vllm: Answer, *words: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Put a function into `LAYOUTS` under its name."""

    def add(make: Callable[[Path], None]) -> Callable[[Path], None]:
        LAYOUTS[make.__name__] = Layout(make, vllm, words)
        return make

    return add


def make_folder(name: str, folder: Path) -> Path:
    """A copy of the shipped model at `folder` in the layout of that name."""
    folder.mkdir(parents=True)
    for path in DEFAULT_MODEL.iterdir():
        shutil.copyfile(path, folder / path.name)
    LAYOUTS[name].make(folder)
    return folder


@cache
def shipped() -> Weights:
    return read_safetensors(DEFAULT_MODEL / "model.safetensors")


def spoilt() -> Weights:
    """Tensors of the same names and shapes, and of another text."""
    return {n: np.ascontiguousarray(w[::-1]) if w.ndim > 1 else w for n, w in shipped().items()}


def store(path: Path, weights: Weights) -> None:
    write_safetensors(path, {name: ("F32", array) for name, array in weights.items()})


def halves() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What two shards hold: every other tensor."""
    names = sorted(shipped())
    first, second = ({n: shipped()[n] for n in names[i::2]} for i in (0, 1))
    return first, second


def write_index(folder: Path, weight_map: Mapping[str, Any]) -> None:
    content = {"metadata": {"total_size": 1}, "weight_map": dict(weight_map)}
    (folder / INDEX).write_text(json.dumps(content))


def mapped() -> dict[str, str]:
    """The index's map for two shards."""
    return {n: name for name, half in zip(SHARDS, halves(), strict=True) for n in half}


def shard(folder: Path, *, index: bool = True) -> None:
    """Two shards in place of the one file."""
    (folder / "model.safetensors").unlink()
    for name, half in zip(SHARDS, halves(), strict=True):
        store(folder / name, half)
    if index:
        write_index(folder, mapped())


def edit(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


# One file.


@layout("right")
def one_file(folder: Path) -> None:
    pass


@layout("right")
def one_file_of_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "tiny.safetensors")


@layout("right")
def a_link_into_a_cache(folder: Path) -> None:
    """As the hub's library lays a snapshot out: names are links to blobs."""
    blobs = folder / "blobs"
    blobs.mkdir()
    (folder / "model.safetensors").rename(blobs / "4665d5b9")
    (folder / "model.safetensors").symlink_to(Path("blobs") / "4665d5b9")


@layout("refused", "model.safetensors", "No such file")
def a_link_to_nothing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(Path("blobs") / "4665d5b9")


@layout("refused", "neither model.safetensors nor another", "MODEL.SAFETENSORS", "lower case")
def upper_case(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "MODEL.SAFETENSORS")


@layout("refused", "model.safetensors", "0 bytes", "truncated")
def an_empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


@layout("refused", "model.safetensors", "git-lfs pointer", "3,289,528 bytes", "not downloaded")
def a_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(POINTER)


@layout("refused", "folder.safetensors", "is a folder")
def a_folder_of_that_name(folder: Path) -> None:
    (folder / "folder.safetensors").mkdir()


@layout("refused", "neither model.safetensors nor another")
def weights_in_a_folder_below(folder: Path) -> None:
    (folder / "weights").mkdir()
    (folder / "model.safetensors").rename(folder / "weights" / "model.safetensors")


@layout("refused", "config.json", "not JSON but a git-lfs pointer")
def settings_that_are_a_pointer(folder: Path) -> None:
    (folder / "config.json").write_bytes(POINTER)


# Shards.


@layout("right")
def shards_and_index(folder: Path) -> None:
    shard(folder)


@layout("right")
def shards_without_index(folder: Path) -> None:
    shard(folder, index=False)


@layout("right")
def more_than_nine_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for i, (name, array) in enumerate(shipped().items()):
        store(folder / f"part{i}.safetensors", {name: array})


@layout("right")
def leftover_beside_shards(folder: Path) -> None:
    shard(folder)
    store(folder / "model.safetensors", spoilt())


@layout("right")
def leftover_of_another_name(folder: Path) -> None:
    write_index(folder, dict.fromkeys(shipped(), "model.safetensors"))
    store(folder / "old.safetensors", spoilt())


@layout("another", "model.safetensors", "old.safetensors", "both hold tensor")
def leftover_without_index(folder: Path) -> None:
    store(folder / "old.safetensors", spoilt())


@layout("right", "copy.safetensors", "model.safetensors", "both hold tensor")
def a_copy_beside_it(folder: Path) -> None:
    shutil.copyfile(folder / "model.safetensors", folder / "copy.safetensors")


@layout("another", "model.fp16.safetensors", "model.safetensors", "both hold tensor")
def a_variant_beside_it(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    store(folder / "model.safetensors", spoilt())


@layout("another", *SHARDS, "both hold tensor 'model.embed_tokens.weight'")
def two_shards_of_an_index_hold_a_tensor(folder: Path) -> None:
    shard(folder)
    name = "model.embed_tokens.weight"
    store(folder / SHARDS[1], {**halves()[1], name: spoilt()[name]})


@layout("refused", INDEX, SHARDS[1], "not in the folder")
def an_index_names_a_missing_shard(folder: Path) -> None:
    shard(folder)
    (folder / SHARDS[1]).unlink()


@layout("another", INDEX, SHARDS[1], "not in the folder")
def the_missing_shard_has_only_projections(folder: Path) -> None:
    """vLLM's check of what was loaded passes each layer that has a quantisation method, plain ones too."""
    (folder / "model.safetensors").unlink()
    second = {
        n: w for n, w in shipped().items() if ".layers.3." in n and n.endswith("_proj.weight")
    }
    store(folder / SHARDS[0], {n: w for n, w in shipped().items() if n not in second})
    write_index(folder, {n: SHARDS[n in second] for n in shipped()})


@layout("refused", INDEX, "must map tensor names", "weight_map")
def an_empty_index(folder: Path) -> None:
    write_index(folder, {})


@layout("refused", INDEX, "must map tensor names", "weight_map")
def an_index_without_a_map(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


@layout("refused", INDEX, "not JSON")
def an_index_of_no_bytes(folder: Path) -> None:
    (folder / INDEX).write_text("")


@layout("refused", INDEX, "git-lfs pointer")
def an_index_that_is_a_pointer(folder: Path) -> None:
    (folder / INDEX).write_bytes(POINTER)


@layout("right")
def an_index_that_is_a_folder(folder: Path) -> None:
    (folder / INDEX).mkdir()


@layout("refused", INDEX, "the name of a file", "got 3")
def an_index_of_numbers(folder: Path) -> None:
    write_index(folder, dict.fromkeys(shipped(), 3))


@layout("refused", INDEX, "'weights/model.safetensors'", "not in the folder")
def an_index_into_a_folder_below(folder: Path) -> None:
    weights_in_a_folder_below(folder)
    write_index(folder, dict.fromkeys(shipped(), "weights/model.safetensors"))


@layout("refused", INDEX, "'./model.safetensors'", "not in the folder")
def an_index_with_a_dot(folder: Path) -> None:
    write_index(folder, dict.fromkeys(shipped(), "./model.safetensors"))


@layout("right")
def an_index_with_a_tensor_more(folder: Path) -> None:
    """A head that was tied when the model was saved again, and not when the index was written."""
    shard(folder)
    write_index(folder, mapped() | {"lm_head.weight": SHARDS[0]})


@layout("right")
def an_index_with_places_changed(folder: Path) -> None:
    shard(folder)
    other = dict(zip(SHARDS, reversed(SHARDS), strict=True))
    write_index(folder, {name: other[place] for name, place in mapped().items()})


@layout("right")
def an_index_with_a_tensor_less(folder: Path) -> None:
    shard(folder)
    index = mapped()
    del index["model.embed_tokens.weight"]
    write_index(folder, index)


@layout("right")
def a_trailing_shard(folder: Path) -> None:
    shard(folder)
    store(folder / "model-00003-of-00002.safetensors", {"unheard.of": np.ones(3, np.float32)})


@layout("refused", "'unheard.of'", SHARDS[1], "no place for")
def a_shard_with_a_tensor_more(folder: Path) -> None:
    shard(folder)
    store(folder / SHARDS[1], {**halves()[1], "unheard.of": np.ones(3, np.float32)})


@layout("right")
def a_shard_with_no_tensor(folder: Path) -> None:
    store(folder / "model-00002-of-00002.safetensors", {})


@layout("right")
def an_empty_file_that_the_index_leaves_out(folder: Path) -> None:
    shard(folder)
    (folder / "model.safetensors").write_bytes(b"")


@layout("refused", "other.safetensors", "0 bytes")
def an_empty_file_beside_it(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes(b"")


@layout("refused", SHARDS[1], "git-lfs pointer")
def one_shard_is_a_pointer(folder: Path) -> None:
    shard(folder)
    (folder / SHARDS[1]).write_bytes(POINTER)


# Others' files beside it.


@layout("refused", "adapter_model.safetensors", "lora_A", "an adapter is not applied")
def an_adapter(folder: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    store(folder / "adapter_model.safetensors", {name: np.ones((2, 128), np.float32)})


@layout("refused", "optimizer.safetensors", "'exp_avg.0'", "no place for")
def an_optimizer(folder: Path) -> None:
    store(folder / "optimizer.safetensors", {"exp_avg.0": np.ones(3, np.float32)})


@layout("right")
def what_a_trainer_leaves(folder: Path) -> None:
    for name in ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"):
        (folder / name).write_bytes(b"x")


@layout("refused", "neither model.safetensors nor another")
def only_what_a_trainer_leaves(folder: Path) -> None:
    what_a_trainer_leaves(folder)
    (folder / "model.safetensors").unlink()


@layout("right")
def a_pickle_beside_it(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x")


@layout("refused", "neither model.safetensors nor another", "pytorch_model.bin", "pickle")
def a_broken_pickle_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")


@layout("right")
def what_a_mac_leaves(folder: Path) -> None:
    for name in ("._model.safetensors", ".DS_Store"):
        (folder / name).write_bytes(b"\x00\x05\x16\x07")


@layout("right")
def a_gguf_beside_it(folder: Path) -> None:
    (folder / "tiny.gguf").write_bytes(b"GGUF")


@layout("refused", "neither model.safetensors nor another", "tiny.gguf", "in the folder's place")
def a_gguf_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "tiny.gguf")
