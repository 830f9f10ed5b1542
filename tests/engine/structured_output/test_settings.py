"""The settings of structured outputs: as arguments, as flags, and what is refused."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from mini_vllm import EngineArgs, EngineConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.entrypoints.cli.flags import add_engine_flags, make_config


def test_a_dictionary_or_the_object() -> None:
    assert EngineConfig().structured_outputs is None
    asked = StructuredOutputsConfig("guidance", disable_any_whitespace=True)
    given = {"backend": "guidance", "disable_any_whitespace": True, "reasoning_parser": ""}
    for value in (asked, given):
        assert EngineConfig(structured_outputs_config=value).structured_outputs == asked
        args = EngineArgs(structured_outputs_config=value)
        assert args.create_engine_config().structured_outputs == asked


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"backend": "outlines"},
            r"structured_outputs_config\.backend must be one of auto, native",
        ),
        ({"backend": 3}, r"structured_outputs_config\.backend must be one of"),
        ({"disable_any_whitespace": 1, "backend": "native"}, "must be True or False, got 1"),
        ({"disable_any_whitespace": True}, "for the backend native or xgrammar or guidance, and"),
        (
            {"disable_additional_properties": True, "backend": "xgrammar"},
            r"disable_additional_properties is for the backend guidance, and .*'xgrammar'",
        ),
        ({"reasoning_parser": "x"}, "has no 'reasoning_parser' .got 'x'.; it has backend,"),
        ({"bakend": "auto"}, "has no 'bakend'"),
        ("xgrammar", "must be a dictionary, got 'xgrammar'"),
    ],
)
def test_what_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EngineConfig(structured_outputs_config=given)


FLAGS: list[tuple[str, dict[str, Any]]] = [
    ("--structured-outputs-config.backend native", {"backend": "native"}),
    (
        '--structured-outputs-config {"backend":"xgrammar","disable_any_whitespace":true}',
        {"backend": "xgrammar", "disable_any_whitespace": True},
    ),
    (
        "--structured-outputs-config.backend=guidance "
        "--structured-outputs-config.disable_additional_properties=true "
        "--structured-outputs-config.disable_any_whitespace false",
        {"backend": "guidance", "disable_additional_properties": True},
    ),
]
MIXED = (
    '--structured-outputs-config {"backend":"native"} --structured-outputs-config.backend guidance'
)


def test_a_later_flag_replaces_what_an_earlier_one_said() -> None:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    config = make_config(parser.parse_args(MIXED.split())).structured_outputs
    assert config == StructuredOutputsConfig("guidance")


@pytest.mark.parametrize(("flags", "settings"), FLAGS)
def test_flags(flags: str, settings: dict[str, Any]) -> None:
    ours, theirs = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_engine_flags(ours)
    EngineArgs.add_cli_args(theirs)
    wanted = StructuredOutputsConfig(**settings)
    assert make_config(ours.parse_args(flags.split())).structured_outputs == wanted
    args = EngineArgs.from_cli_args(theirs.parse_args(flags.split()))
    assert args.create_engine_config().structured_outputs == wanted


@pytest.mark.vllm
@pytest.mark.parametrize(("flags", "settings"), FLAGS)
def test_flags_of_vllm(flags: str, settings: dict[str, Any]) -> None:
    from vllm import EngineArgs as Theirs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = Theirs.add_cli_args(FlexibleArgumentParser())
    if settings["backend"] == "native":
        pytest.skip("it is ours")
    config = parser.parse_args(flags.split()).structured_outputs_config
    given = config if isinstance(config, dict) else vars(config)
    assert {name: given[name] for name in settings} == settings
