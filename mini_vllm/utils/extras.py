"""How to get a package that is missing: the same words in every message.

No message names the distribution to an installer: on the package index `mini-vllm` is another project, which
installs a module of our name.
"""

from __future__ import annotations

import sys
from pathlib import Path

DISTRIBUTION = "mini-vllm-course"


def install_commands(extra: str) -> list[str]:
    """The commands that bring an extra of pyproject.toml, to be said with "or" between them.

    In a checkout uv's and pip's. A wheel has no folder to install from, so there it is pip's alone, with the
    packages that the extra asks for.
    """
    in_checkout = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    if not in_checkout and (packages := _packages(extra)):
        return ["pip install " + " ".join(f'"{package}"' for package in packages)]
    return [f"uv sync --inexact --extra {extra}", f'pip install -e ".[{extra}]"']


def how_to_get(extra: str) -> str:
    """`install_commands` as the end of a sentence."""
    return ", or ".join(install_commands(extra))


def _packages(extra: str) -> list[str]:
    """What an extra asks for on this system, by the metadata; nothing where there are none."""
    from importlib.metadata import PackageNotFoundError, requires  # 20 ms that no other run needs

    try:
        wanted = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    found = []
    for line in wanted:
        package, _, marker = line.replace('"', "'").partition(";")
        here = f"== '{sys.platform}'" in marker or (
            "sys_platform ==" not in marker and f"!= '{sys.platform}'" not in marker
        )
        if f"extra == '{extra}'" in marker and here:
            found.append(package.strip())
    return found
