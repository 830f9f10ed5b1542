"""A Hugging Face checkpoint folder: `config.json` and `*.safetensors` to numpy arrays.

Mirrors vLLM's default loader (`vllm/model_executor/model_loader/default_loader.py`) and the
weight names of `vllm/model_executor/models/llama.py:436 LlamaModel.load_weights`. Which files are read,
`weight_utils.py` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.registry import BACKENDS, get_backend
from mini_vllm.config.checks import CheckpointError, as_ids
from mini_vllm.config.model import LlamaConfig
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.layers.quantization.base import Parameter
from mini_vllm.model_loader.progress import loading_bar
from mini_vllm.model_loader.safetensors_file import StoredTensor, equal_tensors
from mini_vllm.model_loader.weight_utils import open_weights, read_json, with_quantization_config
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.registry import MODELS, read_config
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.memory import available_memory
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionBackend
    from mini_vllm.distributed.parallel_state import RankGroups


def require_checkpoint(folder: Path) -> Path:
    """The path of its `config.json`; CheckpointError where there is none."""
    try:
        is_folder = folder.is_dir()
    except OSError:  # a name that is too long, for instance
        is_folder = False
    if not is_folder:
        raise CheckpointError(
            f"model folder {shorten_repr(str(folder), 300)} does not exist or is no folder"
        )
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"model folder {shorten_repr(str(folder), 300)} is no checkpoint: it has no config.json"
        )
    return path


def load_config(folder: str | Path) -> LlamaConfig:
    """Read and check `config.json` and, for the ids that end a text, `generation_config.json`.

    Raises:
        CheckpointError: `folder` does not exist, is no checkpoint, or its model is not supported.
    """
    folder = Path(folder)
    path = require_checkpoint(folder)
    raw, key = with_quantization_config(folder, read_json(path))
    generation = folder / "generation_config.json"
    if generation.is_file():
        # vLLM adds these ids to the tokenizer's own as ids that stop a request. Where there is a
        # generation config, config.json is not asked.
        eos = read_json(generation).get("eos_token_id")
        try:
            if eos is not None:
                as_ids(eos, "generation_config.json")
        except CheckpointError as error:
            raise CheckpointError(f"{generation}: {error}") from error
        raw["eos_token_id"] = eos
    try:
        config = read_config(raw)
        get_quantization_config(config.quantization_config)
    except CheckpointError as error:
        text = str(error).replace("quantization_config", key)  # as the file has it
        raise CheckpointError(f"{path}: {text}") from error
    return config


_SAMPLING_DEFAULTS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def load_default_sampling_params(folder: str | Path) -> dict[str, Any]:
    """What `generation_config.json` says of sampling, by `SamplingParams`' names; often nothing.

    Raises CheckpointError for a value that `SamplingParams` refuses.
    Source: `vllm/config/model.py:1465 ModelConfig.get_diff_sampling_param`.
    """
    path = Path(folder) / "generation_config.json"
    raw = read_json(path) if path.is_file() else {}
    defaults: dict[str, Any] = {}
    for theirs, ours in _SAMPLING_DEFAULTS.items():
        if (value := raw.get(theirs)) is None:
            continue
        try:
            SamplingParams(**{ours: value})
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {theirs}: {error}") from error
        defaults[ours] = value
    return defaults


def load_weights(folder: str | Path, quantized: bool = False) -> dict[str, NDArray[Any]]:
    """Every tensor of the checkpoint, by name, as float32; float16 and bfloat16 are widened.

    Raises CheckpointError as `open_weights`.
    """
    return {name: tensor.read() for name, tensor in open_weights(folder, quantized).items()}


class WeightsOnDemand(Mapping[str, NDArray[Any]]):
    """Tensors that are read when a layer asks for them, and checked to be finite.

    A tensor that is still in use is not read again: a head that is tied to the embedding is the same
    array. Raises CheckpointError as `StoredTensor.read` and for a number that is not finite.

    Args:
        stored: what there is.
        progress: called after each tensor with the bytes read so far and those of all.
    """

    def __init__(
        self, stored: Mapping[str, StoredTensor], progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._stored = stored
        self._progress = progress
        self._held: WeakValueDictionary[str, NDArray[Any]] = WeakValueDictionary()
        self._read = 0
        self._total = sum(tensor.nbytes for tensor in stored.values())

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._held.get(name)
        if array is None:
            array = self._held[name] = self._stored[name].read()
            if array.dtype == np.float32:
                _check_finite(name, array)
            self._read += array.nbytes
            if self._progress is not None:
                self._progress(min(self._read, self._total), self._total)
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._stored  # a Mapping's own would read the tensor, to be read again

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def expected_tensors(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration must hold."""
    return {name: p.shape for name, p in _expected_tensors(config) if not p.optional}


def _expected_tensors(config: LlamaConfig) -> Iterator[tuple[str, Parameter]]:
    hidden = config.hidden_size
    yield "model.embed_tokens.weight", Parameter((config.vocab_size, hidden))
    yield from tensors_of_layers(config)
    yield "model.norm.weight", Parameter((hidden,))
    if not config.tie_word_embeddings:
        yield "lm_head.weight", Parameter((config.vocab_size, hidden))


def tensors_of_layers(config: LlamaConfig) -> Iterator[tuple[str, Parameter]]:
    """Name and shape of every tensor of the decoder layers."""
    quantization = get_quantization_config(config.quantization_config)
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        for name, out, inp, bias in config.linears(i):
            method = quantization.get_quant_method(f"{prefix}{name}")
            try:
                tensors = method.create_weights(inp, out)
            except ValueError as error:
                raise CheckpointError(f"{prefix}{name} cannot be {method}: {error}") from error
            for suffix, parameter in tensors.items():
                yield f"{prefix}{name}.{suffix}", parameter
            if bias:
                yield f"{prefix}{name}.bias", Parameter((out,))
        if quantization.kv_cache_dtype != "auto":
            for name in "kv":
                yield f"{prefix}self_attn.{name}_scale", Parameter((1,), optional=True)
        for name, size in config.layer_norm_sizes(i).items():
            yield f"{prefix}{name}", Parameter((size,))


def check_weights(
    config: LlamaConfig,
    weights: Mapping[str, NDArray[Any] | StoredTensor],
    tensors: Iterable[tuple[str, Parameter]] | None = None,
) -> None:
    """Every expected tensor is there, in its shape and finite, and none that would be ignored. Whether a
    tensor is finite that still lies in its file, `WeightsOnDemand` sees when it is read.

    `tensors` are those of a model of this configuration, or the given ones.

    Skipped as vLLM skips them
    (`vllm/model_executor/models/llama.py:448 in LlamaModel.load_weights`): rotary tables saved by
    old versions; `lm_head.weight` where the head is tied to the embedding, if the two are equal; and of the
    biases that GPTQ files hold for layers without one, those that are all zeros. (vLLM skips any.)
    """
    expected: set[str] = set()
    # One by one: there are as many as config.json says there are layers, and that may be any number.
    for name, parameter in _expected_tensors(config) if tensors is None else tensors:
        expected.add(name)
        if name not in weights:
            if parameter.optional:
                continue
            raise CheckpointError(_describe_missing(config, weights, name, parameter))
        _check_tensor(name, weights[name], parameter)
    unused = sorted(n for n in weights.keys() - expected if "rotary_emb." not in n)
    if config.tie_word_embeddings and _HEAD in unused:
        unused.remove(_HEAD)
        if not equal_tensors(weights[_HEAD], weights[_EMBEDDING]):
            raise CheckpointError(
                f"{_HEAD} differs from {_EMBEDDING}, and config.json ties the two, which leaves the "
                "stored head unread: set tie_word_embeddings to false to use it, or take the tensor out"
            )
    if config.quantization_config:
        zeros = {n for n in unused if n.endswith("_proj.bias") and not _as_array(weights[n]).any()}
        unused = [n for n in unused if n not in zeros]
    if unused:
        raise CheckpointError(_describe_unused(weights, unused))


def _describe_missing(
    config: LlamaConfig, weights: Mapping[str, object], name: str, parameter: Parameter
) -> str:
    """The sentence for a tensor that is not there."""
    text = f"the checkpoint lacks tensor {name!r} of shape {parameter.shape}"
    layers = {int(m[1]) for n in weights if (m := _LAYER.match(n))}
    if name == _HEAD:
        return (
            f"{text}, and config.json does not tie the head to the embedding: tie_word_embeddings is "
            "false, or left out"
        )
    if layers and len(layers) != config.num_hidden_layers:
        return (
            f"{text}; config.json says num_hidden_layers {config.num_hidden_layers}, the tensors are of "
            f"{len(layers)} layers"
        )
    names = sorted(weights)
    return f"{text}; the first of its {len(names)} is {shorten_repr(names[0]) if names else 'missing too'}"


def _describe_unused(weights: Mapping[str, NDArray[Any] | StoredTensor], unused: list[str]) -> str:
    """The sentence for tensors that no layer takes."""
    first = weights[unused[0]]
    where = f" in {first.path.name}" if isinstance(first, StoredTensor) else ""
    text = (
        f"the checkpoint holds {len(unused)} tensors that this model has no place for, "
        f"first {shorten_repr(unused[0])}{where}: "
    )
    if ".lora_" in unused[0]:
        return f"{text}an adapter is not applied; merge it into the model, or take its file out"
    return f"{text}its config.json may miss attention_bias, mlp_bias or a layer"


def _as_array(tensor: NDArray[Any] | StoredTensor) -> NDArray[Any]:
    return tensor.read() if isinstance(tensor, StoredTensor) else tensor


def _check_tensor(name: str, tensor: NDArray[Any] | StoredTensor, parameter: Parameter) -> None:
    """Shape and dtype are the parameter's, and floats are finite. A single number may have no shape."""
    shape, dtype = tensor.shape or (1,), str(tensor.dtype)
    if shape != (parameter.shape or (1,)):
        raise CheckpointError(
            f"tensor {name!r} has shape {shorten_repr(tensor.shape)}, config.json asks for {parameter.shape}"
        )
    if dtype not in parameter.dtypes:
        raise CheckpointError(
            f"tensor {name!r} has dtype {dtype}, config.json asks for {' or '.join(parameter.dtypes)}"
        )
    if dtype == "float32" and not isinstance(tensor, StoredTensor):
        _check_finite(name, tensor)


def _check_finite(name: str, weight: NDArray[np.float32]) -> None:
    """vLLM takes such a weight and answers with nonsense; a NaN spoils every token after it."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(weight.sum()):  # no NaN and no infinity leaves the sum finite
            return
    finite = np.isfinite(weight)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise CheckpointError(
            f"tensor {name!r} holds {weight[place]} at {list(place)}: weights must be finite"
        )


def load_model(
    folder: str | Path,
    attention: AttentionBackend | None = None,
    model_cls: Callable[..., LlamaForCausalLM] = LlamaForCausalLM,
    groups: RankGroups | None = None,
) -> LlamaForCausalLM:
    """Read the checkpoint in `folder` and build the model, with `attention` as its backend.

    A tensor is read when its layer is made, so beside the model there is never more than one layer's. On a
    terminal a bar shows how far it is.

    Args:
        model_cls: called with config, weights and `attention`; `mini_vllm.gpu.llama` has another. The default
            stands for whichever of `models/registry.py` the checkpoint is of.
        groups: of one of several ranks: the model is then that rank's share (`shards.py`).

    Raises:
        CheckpointError: see `load_config`, `open_weights` and `check_weights`; the weights are more than the
            memory that is free.
    """
    config = load_config(folder)
    if config.architecture != "LlamaForCausalLM":
        if model_cls is not LlamaForCausalLM:
            raise CheckpointError(
                f"{folder}: {config.architecture} runs with attention='numpy' only: torch tensors have "
                "a Llama alone"
            )
        model_cls = MODELS[config.architecture]
    stored = open_weights(folder, quantized=bool(config.quantization_config))
    try:
        check_weights(config, stored)
        needed, free = sum(tensor.nbytes for tensor in stored.values()), available_memory()
        if groups is not None:
            needed //= groups.tensor.world_size * groups.pipeline.size  # about its share
        if needed > free:
            raise CheckpointError(
                f"the weights take {needed / 2**30:.1f} GiB as float32, and {free / 2**30:.1f} GiB of "
                "memory are free"
            )
        if groups is not None:
            from mini_vllm.model_loader.shards import make_shard

            shard: LlamaForCausalLM = make_shard(
                model_cls, config, WeightsOnDemand(stored), attention, groups
            )
            return shard
        bar = loading_bar(needed)
        model = model_cls(config, WeightsOnDemand(stored, bar), attention)
        if bar is not None:
            bar(
                needed, needed
            )  # a tensor that the model has no use for, such as a tied head's, was not read
        return model
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def get_model(
    model: str | Path | ModelForTextGeneration,
    attention: str = "numpy",
    make_attention: Callable[[], AttentionBackend] | None = None,
) -> ModelForTextGeneration:
    """The model for an attention backend: loaded from a folder, or the one given, if it fits.

    Args:
        model: a checkpoint folder, or a loaded model.
        attention: `EngineConfig.attention`.
        make_attention: makes the backend in place of the registry's; only for numpy, and only where the
            model is loaded here.

    Raises:
        CheckpointError: see `load_model`.
        ValueError: a package is missing, or model, `attention` and `make_attention` do not go together.

    Source: `vllm/model_executor/model_loader/__init__.py:133 get_model`.
    """
    backend = get_backend(attention)
    if make_attention is not None and attention != "numpy":
        raise ValueError(
            f"parts.attention ({make_attention!r}) computes with numpy arrays, and "
            f"attention={attention!r} makes a model of torch tensors: leave one of the two out"
        )
    if isinstance(model, str | Path):
        make = make_attention or backend.get_attention_cls()
        return load_model(model, make(), backend.get_model_cls())
    if make_attention is not None:
        raise ValueError(
            f"parts.attention ({make_attention!r}) is for a model that the engine loads from a "
            "folder; a loaded model keeps the backend that it was made with: give it to "
            "LlamaForCausalLM or load_model"
        )
    if attention != "numpy" and model.config.architecture != "LlamaForCausalLM":
        raise ValueError(
            f"attention={attention!r} is for a Llama, and the loaded model is a "
            f"{model.config.architecture}, which runs with attention='numpy' only"
        )
    path = f"{type(model).__module__}.{type(model).__name__}"
    # A class that is not registered, such as a wrapper around one of these, is taken at its word.
    if path != backend.model and any(path == other.model for other in BACKENDS.values()):
        raise ValueError(
            f"attention={attention!r} is for a {backend.model}, and the loaded model is a {path}"
        )
    return model
