"""The names of attention backends: where they lead, and what is said where something is missing."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import mini_vllm
from mini_vllm import LLM, EngineConfig, LLMEngine
from mini_vllm.attention import PagedAttention, TiledAttention
from mini_vllm.attention.registry import BACKENDS, get_backend
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.engine.parts import EngineParts
from mini_vllm.entrypoints.cli import build_parser, main
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.worker.forward import NumpyForward

ROOT = Path(mini_vllm.__file__).parents[1]


def test_setting_flag_and_registry_know_the_same_names() -> None:
    names = list(BACKENDS)
    assert names == [backend.name for backend in BACKENDS.values()]
    lazy = {
        "SpeculativeConfig": SpeculativeConfig,
        "StructuredOutputsConfig": StructuredOutputsConfig,
    }
    hints = get_type_hints(EngineConfig, localns=lazy)
    assert list(get_args(hints["attention"])) == names
    for name in names:
        assert build_parser().parse_args(["generate", "x", "--attention", name]).attention == name


@pytest.mark.parametrize("name", BACKENDS)
def test_every_path_leads_to_a_class(name: str) -> None:
    """Read from the source, so that it holds where torch is missing."""
    backend = BACKENDS[name]
    for path in (backend.attention, backend.model, backend.forward):
        module, class_name = path.rsplit(".", 1)
        source = ROOT / (module.replace(".", "/") + ".py")
        names = {n.name for n in ast.parse(source.read_bytes()).body if isinstance(n, ast.ClassDef)}
        assert class_name in names, f"{source} has no class {class_name}"


def test_numpy_leads_to_the_spine() -> None:
    backend = get_backend("numpy")
    assert backend.get_attention_cls() is TiledAttention
    assert backend.get_model_cls() is LlamaForCausalLM
    assert backend.get_forward_cls() is NumpyForward
    llm = LLM()
    assert type(llm.llm_engine.engine_core.model_runner.forward) is NumpyForward


@pytest.mark.parametrize("name", ["cuda", "", None, 5, ["torch"]])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match=r"^attention must be 'numpy', 'torch' or 'triton', got "):
        EngineConfig(attention=name)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^attention must be one of numpy, torch, triton, got "):
        get_backend("FLASH_ATTN")


@pytest.mark.parametrize(("name", "needs"), [("torch", "torch"), ("triton", "torch and triton")])
def test_a_missing_package_is_one_line(
    name: str, needs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    assert main(["generate", "Hi", "--attention", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"mini-vllm: attention='{name}' needs {needs}, of the extra 'torch': "
        'uv sync --inexact --extra torch, or pip install -e ".[torch]"\n'
    )


def test_numpy_attention_is_not_put_under_a_torch_model() -> None:
    with pytest.raises(ValueError, match=r"parts.attention .*PagedAttention.* attention='torch'"):
        LLMEngine(
            config=EngineConfig(attention="torch"), parts=EngineParts(attention=PagedAttention)
        )
