"""`course site`: the course as a website, built here and read anywhere.

mkdocs.yml configures it, `course.site.pages` says what the pages are.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from course.learner.labs import CourseError, find_root

for _package in ("mkdocs", "material"):
    importlib.import_module(_package)  # missing: `course site` then names the extra that brings it

PORT = 8001
"""Where `serve` shows the site: beside a server of the engine, `mini-vllm serve`, which takes 8000."""

app = typer.Typer(help="The course as a website.", no_args_is_help=True)


def _run(arguments: list[str], root: Path) -> None:
    """MkDocs, in a process of its own: it sets up logging and signals for itself."""
    command = [sys.executable, "-m", "mkdocs", *arguments, "-f", str(root / "mkdocs.yml")]
    # Material's notice about MkDocs 2, which the extra `site` does not take.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    try:
        done = subprocess.run(command, cwd=root, env=environment, check=False)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    if done.returncode:
        raise typer.Exit(1)


def _is_free(folder: Path) -> bool:
    """Nothing there, or a site built before: MkDocs empties the folder it builds into."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    built = (folder / "404.html").is_file() and (folder / "search" / "search_index.json").is_file()
    return built or not any(folder.iterdir())


@app.command()
def build(
    folder: Annotated[
        Path | None, typer.Argument(help="where to; default: site/ in the repository")
    ] = None,
) -> None:
    """Build the site. A broken link or a lab that cannot be shown fails the build."""
    root = find_root()
    target = (folder or root / "site").expanduser().resolve()
    if not _is_free(target):
        raise CourseError(f"{target} holds something that is no site of ours; give an empty folder")
    _run(["build", "--strict", "-d", str(target)], root)
    print(f"built: {target}")
    print(f'read it: {Path(sys.executable).name} -m http.server -d "{target}"')


def _refuse_taken(port: int) -> None:
    """MkDocs asks for the port after a minute of building, and then fails with a traceback."""
    with socket.socket() as probe:
        if os.name == "posix":  # one just left is free; on Windows, one in use would be as well
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CourseError(
                f"port {port}: {error.strerror}; choose another with --port"
            ) from None


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="the port on this machine")] = PORT,
    open_it: Annotated[bool, typer.Option("--open", help="open it in a browser")] = False,
) -> None:
    """Show the site on this machine, and build it again when a page is saved."""
    root = find_root()
    _refuse_taken(port)
    print(
        f"builds the site first, a minute or so; then it is at http://127.0.0.1:{port}/", flush=True
    )
    more = ["--open"] if open_it else []
    _run(["serve", "-a", f"127.0.0.1:{port}", *more], root)


if __name__ == "__main__":
    app()
