"""Which files of a checkpoint folder hold its weights, and every tensor in them.

Mirrors `vllm/model_executor/model_loader/default_loader.py:97 DefaultModelLoader._prepare_weights` and
`vllm/model_executor/model_loader/weight_utils.py`. Every `*.safetensors` in the folder is read; where there
is an index, the files that it names. An index decides on files only: what is in them is what they say.

Where vLLM goes on without a word, this raises CheckpointError: the index names a shard that is missing, or
two files hold the same tensor (upstream the last one wins). Mistral's `consolidated*.safetensors` are not
read beside other files, which upstream passes over for them. Left out: pickles, downloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mini_vllm.config.checks import CheckpointError
from mini_vllm.model_loader.safetensors_file import StoredTensor, open_safetensors, read_header
from mini_vllm.utils.untrusted import parse_json, read_bytes, shorten_repr

INDEX = "model.safetensors.index.json"
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
"""Pickles that a trainer leaves
(`vllm/model_executor/model_loader/weight_utils.py:676 filter_files_not_needed_for_inference`)."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`; `CheckpointError` names the file if it is anything else."""
    try:
        value = parse_json(read_bytes(path))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def with_quantization_config(folder: Path, raw: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What `config.json` says, with what it says of its weights under `quantization_config`, and the key
    under which that stood: compressed-tensors' older files have it under `compression_config`.

    Raises CheckpointError where ModelOpt's `hf_quant_config.json` says it instead.
    Source: `vllm/model_executor/model_loader/weight_utils.py:263 get_quant_config`.
    """
    key, modelopt = "quantization_config", folder / "hf_quant_config.json"
    if raw.get(key) is not None:
        return raw, key
    if raw.get("compression_config") is not None:
        return raw | {key: raw["compression_config"]}, "compression_config"
    if modelopt.is_file():
        told = read_json(modelopt)
        quantization = told.get("quantization")
        if not isinstance(quantization, dict) or quantization.get("quant_algo") is not None:
            raise CheckpointError(
                f"{modelopt}: the checkpoint is quantised by {shorten_repr(told.get('producer'))}: "
                f"{shorten_repr(quantization)}, which is not supported"
            )
    return raw, key


def prepare_weights(folder: Path) -> list[Path]:
    """The files that are read. Their order says nothing here, since no two may hold the same tensor; upstream
    sorts them, because the last one wins.

    Raises CheckpointError where there are none, or the index cannot be followed.
    """
    names = _list(folder)
    there = [name for name in names if name.endswith(".safetensors")]
    if (folder / INDEX).is_file():
        chosen = _names_in_index(folder / INDEX)
        for name in chosen:
            if name not in there:
                what = "is no *.safetensors" if name in names else "is not in the folder"
                raise CheckpointError(
                    f"{folder / INDEX} names the shard {shorten_repr(name)}, which {what}"
                )
    else:
        # Both formats of one model lie in many of Mistral's folders.
        chosen = [name for name in there if not _is_consolidated(name)] or there
    if not chosen:
        raise CheckpointError(_no_weights(folder, names))
    return [folder / name for name in sorted(chosen)]


def _list(folder: Path) -> list[str]:
    """Names in the folder, but hidden ones: macOS leaves a `._model.safetensors` beside each file."""
    try:
        return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from error


def _is_consolidated(name: str) -> bool:
    return name.startswith("consolidated") and name.endswith(".safetensors")


def _names_in_index(index: Path) -> list[str]:
    """The files that the index names
    (`vllm/model_executor/model_loader/weight_utils.py:655 filter_duplicate_safetensors_files`)."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} must map tensor names to files under weight_map")
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise CheckpointError(
                f"{index}: weight_map must give {shorten_repr(tensor)} the name of a file, got "
                f"{shorten_repr(name)}"
            )
    return list(dict.fromkeys(weight_map.values()))


def _no_weights(folder: Path, names: list[str]) -> str:
    """The sentence for a folder without `*.safetensors`, with what is there instead."""

    def ending(*suffixes: str) -> list[str]:
        return [name for name in names if name.lower().endswith(suffixes)]

    hint = ""
    if shouted := ending(".safetensors"):
        hint = f" ({', '.join(shouted)}: the name must end in lower case)"
    elif pickles := [name for name in ending(".bin", ".pt", ".pth") if name not in NOT_WEIGHTS]:
        hint = (
            f" ({', '.join(pickles)}: pickles are not supported, since reading one runs its code)"
        )
    elif gguf := ending(".gguf"):
        hint = f" (give {folder / gguf[0]} in the folder's place to have it converted)"
    elif "params.json" in names:
        hint = " (params.json: Mistral's own format, which is not supported)"
    return f"{folder} has neither model.safetensors nor another *.safetensors{hint}"


def open_weights(folder: str | Path, quantized: bool = False) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint, by name, none of them read yet.

    Args:
        quantized: whether integers and FP8 are taken as well; see `open_safetensors`.

    Raises:
        CheckpointError: see `prepare_weights`; a file that is truncated or corrupt, a tensor that two files
            hold, names of Mistral's own format, or a dtype that is not supported.
    """
    folder = Path(folder)
    files = prepare_weights(folder)
    weights: dict[str, StoredTensor] = {}
    for path in files:
        tensors = open_safetensors(path, quantized)
        _check_claims(path, tensors, weights)
        weights.update(tensors)
    if theirs := weights.get("tok_embeddings.weight"):
        raise CheckpointError(
            f"{theirs.path} is in Mistral's own format (it has a tensor 'tok_embeddings.weight'), which is "
            "not supported: the same model's files for transformers are"
        )
    # With usual names it is another copy, and the one that upstream would read.
    for path in (folder / name for name in _list(folder) if _is_consolidated(name)):
        if path not in files:
            _check_claims(path, read_header(path).entries, weights)
    return weights


def _check_claims(path: Path, names: Iterable[str], weights: dict[str, StoredTensor]) -> None:
    for name in names:
        if name in weights:
            raise CheckpointError(
                f"{weights[name].path} and {path.name} both hold tensor {shorten_repr(name)}, and which "
                "of them is "
                "meant cannot be told: take the wrong one out of the folder"
            )
