"""Rules that the repository as a whole keeps."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 450
IMPORT_SECONDS = 0.3
UNREAD = {".git", ".venv", "venv", "upstream", "build", "dist", "site", "node_modules"}

# In parts, so that this file does not match itself.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("wheels", "vllm", "ai"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("conda", "anaconda", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
    ]
]


def _files() -> Iterator[Path]:
    """Every file of the project: what git tracks or would, or without git all but tool output."""
    if (ROOT / ".git").exists():
        out = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"],
            capture_output=True,
            check=False,
        )
        if out.returncode == 0:
            names = sorted({name.decode() for name in out.stdout.split(b"\0") if name})
            yield from (ROOT / name for name in names if (ROOT / name).is_file())
            return
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            f
            for f in folders
            if f not in UNREAD and f != "__pycache__" and not f.endswith(("_cache", ".egg-info"))
        ]
        yield from (Path(folder, name) for name in names if name != "uv.lock")


def _python(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import statement in the file, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def test_no_file_names_a_registry_host() -> None:
    found = []
    for path in _files():
        data = path.read_bytes().lower()
        found += [f"{path.relative_to(ROOT)}: {h}" for h in REGISTRY_HOSTS if h.encode() in data]
    assert not found, "installers take their index from the reader's own settings:\n" + "\n".join(
        found
    )


def test_no_lock_file_is_tracked() -> None:
    assert ROOT / "uv.lock" not in set(_files()), "uv.lock records download addresses"


def test_no_file_outgrows_a_reading() -> None:
    """Every Python and JavaScript file, tests and labs too, but for other people's libraries."""
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in _files()
        if path.suffix in (".py", ".js") and "vendor" not in path.parts
    }
    assert "mini_vllm/engine/llm_engine.py" in sizes, "the files of the repository are not found"
    long = [f"{name}: {n} lines" for name, n in sizes.items() if n > MAX_LINES]
    assert not long, f"more than {MAX_LINES} lines; split by what a reader looks for: {long}"


def test_the_engine_never_imports_the_course() -> None:
    outside = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in _python("mini_vllm")
        for line, module in _imported(path)
        if module.split(".")[0] in {"course", "benchmarks", "tests", "conftest"}
    ]
    assert not outside, outside


SERVE_EXTRA = {
    "fastapi",
    "httptools",
    "jinja2",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "pydantic",
    "starlette",
    "uvicorn",
}


def test_the_engine_imports_only_what_a_laptop_has() -> None:
    """The standard library and the dependencies in pyproject.toml; extras are imported inside functions.

    But for `mini_vllm/entrypoints/openai` and `mini_vllm/gpu`, which are nothing without their extras,
    and which nobody else imports at the top of a module, save the command's flags.
    """
    laptop = set(sys.stdlib_module_names) | {"numpy", "safetensors", "threadpoolctl", "mini_vllm"}
    server, gpu = ROOT / "mini_vllm/entrypoints/openai", ROOT / "mini_vllm/gpu"
    needs_nothing = {server / "__init__.py"}
    found = []
    for path in _python("mini_vllm"):
        inside, on_gpu = server in path.parents, gpu in path.parents
        allowed = laptop | (SERVE_EXTRA if inside and path not in needs_nothing else set())
        allowed |= {"torch", "triton"} if on_gpu and path != gpu / "__init__.py" else set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            found += [
                f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
                for name in names
                if name.split(".")[0] not in allowed
                or (name.startswith("mini_vllm.gpu") and not on_gpu)
                or (
                    (name.startswith("mini_vllm.entrypoints.openai") and not inside)
                    and name != "mini_vllm.entrypoints.cli.serve"
                )
            ]
    assert not found, found


def test_every_path_and_module_of_the_engine_that_is_named_exists() -> None:
    """In pages, labs, tests and comments: a file that moved leaves no old name behind."""
    made_up = ("tests/authors/",)  # these write repositories of their own
    not_modules = {"mini_vllm.parts", "mini_vllm.unified_kv_cache_update", "mini_vllm.wna16_gemm",
                   "mini_vllm.unified_attention_with_output"}  # fmt: skip  # entry points, torch's operations
    wrong = []
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".md", ".py", ".toml", ".yml", ".txt") or name.startswith(made_up):
            continue
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"(?<!\w)mini_vllm/[\w/-]+(?:\.\w+)?", text):
            if not (ROOT / found).exists():
                wrong.append(f"{name}: {found}")
        for found in re.findall(r"(?<![\w./])mini_vllm\.[a-z_]\w*(?:\.[a-z_]\w*)*", text):
            if found not in not_modules and not _is_module_or_in_one(found):
                wrong.append(f"{name}: {found}")
    assert not wrong, "\n".join(wrong)


def _is_module_or_in_one(dotted: str) -> bool:
    """Whether a beginning of the name is a module below `mini_vllm`, or its package has the name."""
    first = dotted.split(".")[1]
    if first.startswith("__") or (ROOT / f"mini_vllm/{first}.py").is_file():
        return True
    *parents, last = dotted.split(".")
    package = ROOT.joinpath(*parents)
    if package.with_suffix(".py").is_file():
        return True
    if not package.is_dir():
        return _is_module_or_in_one(".".join(parents)) if len(parents) > 2 else False
    return (
        (package / last).is_dir()
        or (package / f"{last}.py").is_file()
        or last in (package / "__init__.py").read_text(encoding="utf-8")
    )


PROBE = """
import sys, time
start = time.process_time()
import mini_vllm
took = time.process_time() - start
heavy = sorted({m.split(".")[0] for m in sys.modules}
               & {"torch", "triton", "vllm", "transformers", "course", "benchmarks"})
print(took, *heavy)
"""


def test_import_is_quick_and_light() -> None:
    """Processor time, the least of several fresh interpreters: the rest is the machine's noise."""
    times = []
    for _ in range(5):
        out = subprocess.run(
            [sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert out.returncode == 0, out.stderr
        took, *heavy = out.stdout.split()
        assert not heavy, f"import mini_vllm also imported {heavy}"
        times.append(float(took))
    assert min(times) < IMPORT_SECONDS, f"import mini_vllm took {min(times):.3f} s at best"


@pytest.mark.parametrize(
    "script", [*sorted(p.name for p in (ROOT / "scripts").glob("*.sh")), "../.ci/run"]
)
def test_shell_scripts_parse_and_can_be_run(script: str) -> None:
    path = ROOT / "scripts" / script
    assert os.access(path, os.X_OK), f"{script} is not executable"
    head, _, rest = path.read_text(encoding="utf-8").partition("\n")
    assert head == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in rest
    out = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


NO_FILES = {"webbrowser", "tarfile", "self.runner"}  # what else has an `open`


def _unnamed_encodings(path: Path) -> Iterator[int]:
    """The lines that open a text file in whatever encoding the system prefers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if not isinstance(node, ast.Call):
            continue
        named = {keyword.arg for keyword in node.keywords} & {"encoding", None}
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        mode = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "r"
        is_text = isinstance(mode, str) and set(mode) <= set("rwax+t")
        of = ast.unparse(node.func).removesuffix(".open")
        opens = called == "open" and is_text and len(node.args) < 2 and of not in NO_FILES
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            opens = len(node.args) < 2 or "b" not in ast.unparse(node.args[1])
        reads = called == "read_text" and not node.args
        if not named and (opens or reads or (called == "write_text" and len(node.args) < 2)):
            yield node.lineno


def test_every_text_file_is_opened_as_utf_8() -> None:
    """Windows would read it as cp1252. The authors' suite itself runs on Linux alone."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in _files()
        if path.suffix == ".py" and "tests" not in path.parts
        for line in _unnamed_encodings(path)
    ]
    assert not found, f"name the encoding: {found}"


# In parts, so that this file does not match itself.
_NAME = "mini" + r"[-_]vllm"
_INSTALL = r"(?:pip3?|pipx|tool|conda|poetry) (?:install|download|add|run)|uv add|uvx|--with|--from"
_TOKEN = r"\s+[\"']?[\w./<>=~!\[\]-]*[\w\]][\"']?"
OTHER_PROJECT = re.compile(
    rf"\b{_NAME}\[\w|(?:{_INSTALL})(?:{_TOKEN})*?[\s=]+[\"']?{_NAME}(?![-\w/.])", re.IGNORECASE
)


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("pip install 'NAME[serve]'", True),
        ("pip install NAME", True),
        ('uv pip install --python .venv/bin/python "NAME"', True),
        ("python -m pip install -U numpy NAME==0.1", True),
        ("uvx NAME generate", True),
        ("uv add --dev NAME", True),
        ("uv tool install NAME", True),
        ("uv run --with NAME NAME serve", True),
        ("which needs it: NAME[hf]", True),
        ('pip install -e ".[serve]"', False),
        ("uv run --extra serve NAME serve", False),
        ("uv sync --reinstall-package NAME-course", False),
        ("pip install -e . && NAME generate", False),
        ("`pip install numpy`. Then `NAME chat`", False),
        ("pip uninstall NAME", False),
        ("cd NAME", False),
    ],
)
def test_what_names_the_other_project(line: str, is_wrong: bool) -> None:
    assert bool(OTHER_PROJECT.search(line.replace("NAME", "mini" + "-vllm"))) is is_wrong


def test_nobody_is_told_to_install_the_other_project() -> None:
    """The package index has another project of the command's name, and it installs a module of our name."""
    suffixes = {".md", ".py", ".sh", ".toml", ".yml", ".yaml", ".json", ".js", ".html", ".svg", ""}
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()[:100]}"
        for path in _files()
        if path.suffix in suffixes and path.stat().st_size < 2**20
        for line in path.read_bytes().decode("utf-8", "replace").splitlines()
        if OTHER_PROJECT.search(line)
    ]
    assert not found, 'say pip install -e ".[serve]", or uv run --extra serve:\n' + "\n".join(found)
