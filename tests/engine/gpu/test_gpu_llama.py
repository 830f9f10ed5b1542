"""`mini_vllm/gpu/llama.py` beside the numpy Llama: layer by layer, for every kind of configuration.

Each test runs on the CPU and, where there is one, on a GPU; the device is the only difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import LlamaConfig, load_model
from mini_vllm.models.llama import LlamaForCausalLM
from tests.engine.helpers.models.model_helpers import (
    CONFIG,
    in_portions,
    random_weights,
    relative_error,
    texts,
    whole,
)
from tests.engine.models.test_llama import LINEAR, LLAMA3

pytestmark = pytest.mark.torch
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LAYER_BOUND = 5e-6
"""Largest difference of a hidden state after any layer, as a share of the layer's largest number. On a
CPU it is 2e-6 after the last of the four layers; each of the two is 1e-6 from float64."""


def watch_layers(model: Any) -> list[list[Any]]:
    """What each layer of the model returns, a list a layer, from now on."""
    seen: list[list[Any]] = [[] for _ in model.layers]
    for layer, states in zip(model.layers, seen, strict=True):

        def forward(*args: Any, real: Any = layer.forward, states: Any = states) -> Any:
            states.append(real(*args))
            return states[-1]

        layer.forward = forward
    return seen


@pytest.mark.parametrize("device", DEVICES)
def test_every_layer_is_close_to_numpys(device: str) -> None:
    """The shipped checkpoint on chunks beside decodes, real text."""
    from mini_vllm.tokenizer import Tokenizer
    from tests.engine.helpers.gpu.torch_helpers import TorchServer, torch_model

    ours = load_model(DEFAULT_MODEL)
    theirs = load_model(DEFAULT_MODEL, None, torch_model(device))
    encode = Tokenizer.from_folder(DEFAULT_MODEL).encode
    lines = ("The scheduler gives each running request its tokens before", "A block table", "Why?")
    tokens = {line: encode(line) for line in lines}
    numpys, torchs = watch_layers(ours), watch_layers(theirs)
    expected = in_portions(ours, tokens)
    found = in_portions(theirs, tokens, TorchServer)
    assert len(torchs) == len(numpys) > 1
    for number, (a, b) in enumerate(zip(torchs, numpys, strict=True)):
        assert len(a) == len(b) > 5
        worst = max(relative_error(x.cpu().numpy(), y) for x, y in zip(a, b, strict=True))
        assert worst < LAYER_BOUND, f"layer {number} is off by {worst:.1e}"
    for line in lines:
        assert relative_error(found[line], expected[line]) < LAYER_BOUND


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 4, "tie_word_embeddings": False},
        {"num_key_value_heads": 1},
        {"rope_parameters": LLAMA3},
        {"rope_parameters": LINEAR},
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        {"head_dim": 16},
        {"num_hidden_layers": 1, "rms_norm_eps": 1e-2},
    ],
    ids=["mha-untied", "mqa", "llama3", "linear", "biases", "wide-heads", "eps"],
)
def test_every_configuration_gives_numpys_logits(changes: dict[str, Any], device: str) -> None:
    from tests.engine.helpers.gpu.torch_helpers import TorchServer, torch_model

    config = LlamaConfig.from_dict(CONFIG | changes)
    weights = random_weights(config)
    ours, theirs = LlamaForCausalLM(config, weights), torch_model(device)(config, weights)
    tokens = texts(ours)
    portions = in_portions(theirs, tokens, TorchServer)
    for name, ids in tokens.items():
        expected = whole(ours, ids)
        assert relative_error(whole(theirs, ids, TorchServer), expected) < 1e-4
        assert relative_error(portions[name], expected) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 5e-3), ("bfloat16", 5e-2)])
def test_16_bits_are_as_close_as_they_can_be(dtype: str, bound: float, device: str) -> None:
    import torch

    from tests.engine.helpers.gpu.torch_helpers import TorchServer, torch_model

    kind = getattr(torch, dtype)
    model = load_model(DEFAULT_MODEL, None, torch_model(device, dtype=kind))
    tokens = texts(model, (40,))["r0"]
    server = TorchServer(model)  # type: ignore[arg-type]
    error = relative_error(
        server.step({"r": tokens})["r"], whole(load_model(DEFAULT_MODEL), tokens)
    )
    assert 1e-5 < error < bound, f"{dtype} is off by {error:.1e}"
    assert {cache.dtype for cache in server.kv_caches} == {kind}
    assert model.layers[0].mlp.down_proj.weight.dtype == kind


def operations(device: str, attention: Any, query_lens: list[int]) -> set[str]:
    """Names of the torch operations of a step, the forward pass and its logits; and of the calls that
    made them, because on a CPU `tolist` is no operation."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from mini_vllm.attention import AttentionMetadata
    from tests.engine.helpers.gpu.torch_helpers import to_device, torch_model

    names: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.name().removeprefix("aten::").partition(".")[0]
            elsewhere = (kwargs or {}).get("device") not in (None, model.device)
            names.add("a copy to another device" if elsewhere else name)
            return func(*args, **(kwargs or {}))

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.add(func.__name__)
            return func(*args, **(kwargs or {}))

    config = LlamaConfig.from_dict(CONFIG)
    model = torch_model(device)(config, random_weights(config), attention)
    reqs, n = len(query_lens), sum(query_lens)
    shape = attention.get_kv_cache_shape(reqs + 1, 4, config.num_key_value_heads, config.head_dim)
    caches = [torch.zeros(shape, device=device) for _ in model.layers]
    positions = np.concatenate([np.arange(length) for length in query_lens])
    slots = np.repeat(np.arange(1, reqs + 1), query_lens) * 4 + positions
    table = np.arange(1, reqs + 1, dtype=np.int32)[:, None]
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    md = to_device(AttentionMetadata(starts, np.diff(starts), table, slots, 4), device)
    ids, places = torch.arange(n, device=device), torch.tensor(positions, device=device)
    with Watch(), Calls():
        model.compute_logits(model.forward(ids, places, caches, md))
    return names


WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "unique", "a copy to another device",
    "tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__",
}  # fmt: skip
"""What reads a value, or has a shape that one decides."""


@pytest.mark.parametrize("device", DEVICES)
def test_the_forward_pass_asks_the_device_for_nothing(device: str) -> None:
    """So that a CUDA graph can hold it. The attention here is the write to the cache alone."""
    from mini_vllm.gpu.backend import TorchAttention, reshape_and_cache

    class Writes(TorchAttention):
        def forward(self, query: Any, key: Any, value: Any, kv_cache: Any, md: Any) -> Any:
            reshape_and_cache(key, value, *kv_cache.unbind(1), md.slot_mapping)
            return query.flatten(1)

    names = operations(device, Writes(), [1, 1, 3])
    assert {"mm", "embedding", "index_put_"} <= names
    assert not names & WAITS, names & WAITS
    assert operations(device, TorchAttention(), [1, 1, 3]) & WAITS >= {"tolist"}


@pytest.mark.triton
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("query_lens", [[1, 1, 1], [1, 1, 3]], ids=["decodes", "mixed"])
def test_the_kernels_callers_ask_for_nothing_either(
    query_lens: list[int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the kernels themselves are not started: what is watched is all around them."""
    import triton
    from triton.runtime.jit import JITFunction

    from mini_vllm.gpu.backend import TritonAttention
    from mini_vllm.gpu.kernels import entry, reshape_and_cache  # noqa: F401 - as for a GPU

    launched: list[str] = []
    run = JITFunction.run

    def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launched.append(kernel.__name__)
        return run(kernel, *args, **kwargs) if device == "cuda" else None

    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)  # asked for, and not needed
    names = operations(device, TritonAttention(), query_lens)
    layers = CONFIG["num_hidden_layers"]
    assert launched.count("copy_to_slot") == launched.count("decode_split") == layers
    assert launched.count("prefill") == (layers if max(query_lens) > 1 else 0)
    assert not names & WAITS, names & WAITS


@pytest.mark.parametrize("device", DEVICES)
def test_padding_is_written_where_nobody_reads(device: str) -> None:
    import torch

    from mini_vllm.gpu.backend import reshape_and_cache

    cache = torch.full((4, 2, 3, 1, 2), 7.0, device=device)  # 4 blocks of 3 slots
    rows = torch.arange(6.0, device=device).reshape(3, 1, 2)
    slots = torch.tensor([5, -1, -1], device=device)
    reshape_and_cache(rows, rows + 10, *cache.unbind(1), slots)
    assert cache[1, :, 2, 0].tolist() == [[0, 1], [10, 11]]
    cache[1, :, 2] = 7
    assert (cache[1:] == 7).all(), "padding was written into a block that a request may have"


def test_layers_can_be_replaced() -> None:
    """Phase 06 puts its own class where a `Linear` stands."""
    from tests.engine.helpers.gpu.torch_helpers import TorchServer, torch_model

    config = LlamaConfig.from_dict(CONFIG)
    model = torch_model("cpu")(config, random_weights(config))
    ids = texts(model)["r0"]
    before = whole(model, ids, TorchServer)
    down = model.layers[0].mlp.down_proj
    model.layers[0].mlp.down_proj = lambda x: 0 * down(x)
    assert np.abs(whole(model, ids, TorchServer) - before).max() > 1e-2
