"""More layouts of the tiny Llama: Mistral's own format beside transformers', and tied or untied heads.

With those of `checkpoint_files.py` they are all that there are.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader.safetensors_file import read_safetensors
from tests.engine.helpers.models.checkpoint_files import (
    LAYOUTS,
    SHARDS,
    Weights,
    edit,
    halves,
    layout,
    make_folder,
    mapped,
    shard,
    shipped,
    spoilt,
    store,
    write_index,
)

__all__ = ["LAYOUTS", "make_folder"]

MIXTRAL = DEFAULT_MODEL.with_name("tiny-mixtral")

# Mistral's own format.


def as_mistral(weights: Weights) -> dict[str, np.ndarray]:
    """The same model by Mistral's names, with rotary pairs side by side."""
    renamed = {}
    for name, weight in weights.items():
        head_dim = 32
        if ".q_proj." in name or ".k_proj." in name:
            turned = weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).transpose(0, 2, 1, 3)
            weight = np.ascontiguousarray(turned.reshape(weight.shape))
        for ours, theirs in {
            "model.embed_tokens": "tok_embeddings", "model.layers": "layers", "model.norm": "norm",
            "self_attn.": "attention.", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo",
            "mlp.": "feed_forward.", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3",
            "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
            "lm_head": "output",
        }.items():  # fmt: skip
            name = name.replace(ours, theirs)
        renamed[name] = weight
    return renamed


def be_mistral(folder: Path) -> None:
    """A Mistral, whose head is untied: vLLM's reader of that format knows no other."""
    edit(
        folder, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    store(folder / "model.safetensors", with_head())


def with_head() -> dict[str, np.ndarray]:
    return {**shipped(), "lm_head.weight": shipped()["model.embed_tokens.weight"]}


def write_params(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    params = {
        "dim": raw["hidden_size"], "n_layers": raw["num_hidden_layers"], "head_dim": 32,
        "hidden_dim": raw["intermediate_size"], "n_heads": raw["num_attention_heads"],
        "n_kv_heads": raw["num_key_value_heads"], "norm_eps": raw["rms_norm_eps"],
        "vocab_size": raw["vocab_size"], "max_position_embeddings": raw["max_position_embeddings"],
        "rope_theta": (raw.get("rope_parameters") or raw)["rope_theta"],
    }  # fmt: skip
    (folder / "params.json").write_text(json.dumps(params))


@layout("right")
def mistrals_format_beside_it(folder: Path) -> None:
    """vLLM reads the consolidated file and params.json; here it is the others, of the same model."""
    be_mistral(folder)
    store(folder / "consolidated.safetensors", as_mistral(with_head()))
    write_params(folder)


@layout("right")
def mistrals_format_beside_shards(folder: Path) -> None:
    be_mistral(folder)
    shard(folder)
    first = {**halves()[0], "lm_head.weight": shipped()["model.embed_tokens.weight"]}
    store(folder / SHARDS[0], first)
    write_index(folder, mapped() | {"lm_head.weight": SHARDS[0]})
    store(folder / "consolidated.safetensors", as_mistral(with_head()))
    write_params(folder)


@layout("right", "consolidated.safetensors", "Mistral's own format", "'tok_embeddings.weight'")
def mistrals_format_alone(folder: Path) -> None:
    mistrals_format_beside_it(folder)
    (folder / "model.safetensors").unlink()


@layout("refused", "neither model.safetensors nor another", "Mistral's own format")
def mistrals_settings_alone(folder: Path) -> None:
    """What is left of a folder whose consolidated file was not fetched."""
    be_mistral(folder)
    write_params(folder)
    (folder / "model.safetensors").unlink()


@layout("right")
def mistrals_settings_beside_it(folder: Path) -> None:
    """Without a consolidated file vLLM does not look at them."""
    write_params(folder)


@layout("refused", "consolidated.safetensors", "Mistral's own format")
def mistrals_format_of_a_llama(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    store(folder / "consolidated.safetensors", as_mistral(shipped()))


@layout("right")
def consolidated_with_usual_names(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")


@layout("another", "consolidated.safetensors", "model.safetensors", "both hold tensor")
def consolidated_leftover(folder: Path) -> None:
    store(folder / "consolidated.safetensors", spoilt())


@layout("another", "consolidated.safetensors", SHARDS[0], "both hold tensor")
def consolidated_leftover_beside_shards(folder: Path) -> None:
    shard(folder)
    store(folder / "consolidated.safetensors", spoilt())


@layout("right")
def an_index_names_the_consolidated_file(folder: Path) -> None:
    consolidated_with_usual_names(folder)
    write_index(folder, dict.fromkeys(shipped(), "consolidated.safetensors"))


@layout("refused")
def consolidated_in_a_folder_below(folder: Path) -> None:
    """vLLM sees it there, takes the folder for one of Mistral's, and looks for it where it is not."""
    (folder / "original").mkdir()
    store(folder / "original" / "consolidated.safetensors", as_mistral(shipped()))


# Heads.


@layout("another", "lm_head.weight differs", "tie_word_embeddings")
def a_tied_head_of_a_mixtral(folder: Path) -> None:
    """Here vLLM has one parameter for the two, and keeps of both what it reads last."""
    shutil.rmtree(folder)
    shutil.copytree(MIXTRAL, folder)
    weights = read_safetensors(folder / "model.safetensors")
    edit(folder, tie_word_embeddings=True)
    head = {"lm_head.weight": np.ascontiguousarray(weights["model.embed_tokens.weight"][::-1])}
    store(folder / "model.safetensors", {**weights, **head})


@layout("another", "lacks tensor 'lm_head.weight'", "tie_word_embeddings")
def an_untied_head_is_missing(folder: Path) -> None:
    edit(folder, tie_word_embeddings=False)


@layout("right")
def a_tied_head_is_stored(folder: Path) -> None:
    store(folder / "model.safetensors", with_head())


@layout("right", "lm_head.weight differs", "model.embed_tokens.weight", "tie_word_embeddings")
def a_tied_head_that_differs_is_stored(folder: Path) -> None:
    head = {"lm_head.weight": spoilt()["model.embed_tokens.weight"]}
    store(folder / "model.safetensors", {**shipped(), **head})


@layout("another")
def an_untied_head_is_another(folder: Path) -> None:
    """The same file, and the head in it is used."""
    a_tied_head_that_differs_is_stored(folder)
    edit(folder, tie_word_embeddings=False)


@layout("refused", "lacks tensor 'model.embed_tokens.weight'", "'embed_tokens.weight'")
def names_without_their_first_part(folder: Path) -> None:
    """As the model without a head saves itself."""
    bare = {name.removeprefix("model."): array for name, array in shipped().items()}
    store(folder / "model.safetensors", bare)
