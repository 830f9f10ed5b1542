"""What a user gets who sets nothing, by release: the defaults as they are declared, and as they are resolved.

    python -m course.drift.defaults        asks every release, 15 s a machine, and writes what changed

Resolved are those of Llama-3.1-8B's shape, under `LLM` and under `vllm serve`, on an H100, an A10 and a CPU.
The GPUs are lab 04-04's stand-in: vLLM's CUDA platform, told which card it is on.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from course.drift.record import ROOT, SETTINGS, fetch
from course.learner.labs import CourseError
from mini_vllm.config.scheduler import RELEASES

CHANGES = Path(__file__).parent / "results" / "defaults.tsv"
GPUS = {"H100": ((9, 0), 80), "A10": ((8, 6), 24)}
"""Capability, and memory in GiB."""
MACHINES = ("CPU", *GPUS)
_STAND_IN = "phase-04-attention-backends/labs/lab-04-backend-selection/cuda_stand_in.py"
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def ask(release: str, machine: str) -> dict[str, str]:
    """Every default of a release on a machine, by where it stands and its name.

    Raises CourseError if this environment cannot run it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "defaults.json"
        keep = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        settings = keep | SETTINGS | {"PYTHONPATH": f"{fetch(release)}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "course.drift.defaults", str(out), machine]
        done = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8")
        if done.returncode or not out.is_file():
            raise CourseError(f"{release} on {machine}: {done.stderr[-600:]}")
        answer: dict[str, str] = json.loads(out.read_text(encoding="utf-8"))
        return answer


def _text(value: object) -> str:
    """The value as JSON; of an object no more than its kind, whose fields are among the resolved ones."""
    return json.dumps(value, default=lambda other: type(other).__name__, sort_keys=True)


def _frontend_args() -> Any:
    for place in ("openai", "launchers", "common"):  # it has moved twice
        with suppress(ImportError):
            return importlib.import_module(f"vllm.entrypoints.{place}.cli_args").FrontendArgs
    raise CourseError("this release has its server's flags in a place that is not known")


def _declared() -> dict[str, str]:
    """The defaults of `EngineArgs`, `SamplingParams`, `vllm serve` and the environment."""
    from vllm import SamplingParams, envs
    from vllm.engine.arg_utils import EngineArgs

    found = {}
    for where, kind in (("EngineArgs", EngineArgs), ("serve", _frontend_args())):
        for field in dataclasses.fields(kind):
            value = field.default
            if field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            found[f"{where} {field.name}"] = _text(value)
    params = SamplingParams()
    for name in SamplingParams.__struct_fields__:
        if not name.startswith("_"):
            found[f"SamplingParams {name}"] = _text(getattr(params, name))
    for name, default in envs.environment_variables.items():
        if name != "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME":  # drawn by lot
            found[f"environment {name}"] = _text(default())
    return found


def _resolved(context: str) -> dict[str, str]:
    """What `EngineArgs` comes to: each field of each part of vLLM's configuration that is one value."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_LLAMA), encoding="utf-8")
        engine_args = EngineArgs(model=folder, skip_tokenizer_init=True)
        config: Any = engine_args.create_engine_config(usage_context=getattr(UsageContext, context))
        found = {"use_v2_model_runner": _text(config.use_v2_model_runner)}
        for part in dataclasses.fields(config):
            settings = getattr(config, part.name)
            if not dataclasses.is_dataclass(settings):
                continue
            for field in dataclasses.fields(settings):
                value = getattr(settings, field.name, None)
                value = getattr(value, "name", value)  # of an enumeration
                if isinstance(value, int | float | str | None) and folder not in str(value):
                    found[f"{part.name.removesuffix('_config')}.{field.name}"] = _text(value)
        return found


def become(machine: str) -> None:
    spec = importlib.util.spec_from_file_location("drift_stand_in", ROOT / _STAND_IN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gpu = module.stand_in()
    capability, gigabytes = GPUS[machine]
    gpu.platform.get_device_total_memory = classmethod(lambda cls, device_id=0: gigabytes << 30)
    gpu.platform.get_device_name = classmethod(lambda cls, device_id=0: f"NVIDIA {machine}")
    gpu.become(capability)
    import vllm.config.vllm

    vllm.config.vllm.HAS_TRITON = True  # it is, where a driver is; runner V2 asks for it


def changes() -> list[tuple[str, ...]]:
    """(release, machine, name, before, now) of each default that is another than in the release before, among
    those that the pin has, too."""
    found: list[tuple[str, ...]] = []
    at_pin = {machine: ask(RELEASES[0], machine) for machine in MACHINES}
    before = at_pin
    for release in RELEASES[1:]:
        now = {machine: ask(release, machine) for machine in MACHINES}
        for machine, settings in now.items():
            for key, value in settings.items():
                then = before[machine].get(key, value)
                if then != value and key in at_pin[machine]:
                    found.append((release, machine, key, then, value))
        before = now
    return found


def main(argv: list[str] | None = None) -> int:
    """Ask all releases; or, with OUT and MACHINE, the one that is first on PYTHONPATH."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        CHANGES.write_text("".join("\t".join(row) + "\n" for row in changes()), encoding="utf-8")
        return 0
    out, machine = arguments
    if machine != "CPU":
        become(machine)
    found = _declared() if machine == "CPU" else {}
    for context, name in (("LLM_CLASS", "LLM"), ("OPENAI_API_SERVER", "vllm serve")):
        found |= {f"{name} {key}": value for key, value in _resolved(context).items()}
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
