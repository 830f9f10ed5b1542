#!/usr/bin/env bash
# All of this course that needs a GPU, once, in at most eight minutes. docs/GPU.md says what it finds.
#
#     scripts/gpu_once.sh [--out DIR] [PART ...]          on a GPU
#     scripts/gpu_once.sh --dry [--out DIR] [PART ...]    without: each part end to end, on small sizes
#     scripts/gpu_once.sh --list                          the parts, their limits and commands
#
# It needs this clone and a Python (PYTHON, default python3) with torch, Triton, pytest, hypothesis and what
# mini_vllm and course import. It installs nothing and asks no network. vLLM's kernels are measured where vLLM is
# installed, else left out. Each part has a limit of its own, and one that fails does not end the others. DIR
# (default gpu-results-DATE) gets a JSON file a benchmark, machine.json, and log.txt with the summary at its end.
set -euo pipefail

TOTAL_S=475 # of the eight minutes; a part gets what is left of them, if that is less than its limit
DRY_S=900   # a part's limit in a dry run, where an interpreter does a GPU's work

root=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PYTHON:-python3}
PARTS=(machine tests decode prefill mixed w4a16 kernels graphs)

# What part $1 is: `limit` in seconds, `about`, and its command, `run` on a GPU and `dry` without one.
part() {
    local chunks=(--dtype float16 --head-size 128 --gqa 4 --rounds 20)
    case $1 in
    machine)
        limit=25 about="device, driver, versions, date"
        run=("$PYTHON" -m benchmarks.machine --save) dry=("${run[@]}" --dry-run)
        ;;
    tests)
        limit=150 about="pytest -m gpu: each file in a process of its own, up to eight at once"
        run=(bash -c "run_tests gpu") dry=(bash -c "run_tests dry")
        ;;
    decode)
        limit=60 about="decode against a copy, vLLM's Triton kernel and FlashAttention"
        run=("$PYTHON" -m benchmarks.attention --save --batch 1 16 64 --context 1024 8192 32768 --head-size 128
            --gqa 1 4 8 --block-size 16 --dtype float16 --rounds 20)
        dry=("$PYTHON" -m benchmarks.attention --save --dry-run)
        ;;
    prefill)
        limit=40 about="prompts and chunks, in TFLOP/s, beside vLLM's kernels and torch's"
        run=("$PYTHON" -m benchmarks.attention --what prefill --save "${chunks[@]}")
        dry=("$PYTHON" -m benchmarks.attention --what prefill --save --dry-run)
        ;;
    mixed)
        limit=35 about="decodes beside a chunk, beside vLLM's kernels"
        run=("$PYTHON" -m benchmarks.attention --what mixed --save "${chunks[@]}")
        dry=("$PYTHON" -m benchmarks.attention --what mixed --save --dry-run)
        ;;
    w4a16)
        limit=50 about="linear layers in 4 and 8 bits against 16, a copy, Marlin, Machete and AWQ"
        run=("$PYTHON" -m benchmarks.quantization --save --batch 1 16 64 --rounds 20)
        dry=("$PYTHON" -m benchmarks.quantization --save --dry-run)
        ;;
    kernels)
        limit=50 about="the labs' kernels against a copy and vLLM's: decode, split decode, prefill, W4A16, MoE, gumbel, LoRA"
        run=("$PYTHON" -m benchmarks.lab_kernels --save --rounds 20)
        dry=("$PYTHON" -m benchmarks.lab_kernels --save --dry-run)
        ;;
    graphs)
        limit=65 about="a decode step replayed from CUDA graphs against eager"
        run=("$PYTHON" -m benchmarks.cudagraph --save --rounds 30)
        dry=("$PYTHON" -m benchmarks.cudagraph --save --dry-run --batch 1 8)
        ;;
    *)
        echo "no part $1; there are: ${PARTS[*]}" >&2
        return 2
        ;;
    esac
}

# The files that have a test marked gpu, one a line. Left out: the authors' test of vLLM's own engines side by side,
# which compiles three of them.
test_files() {
    cd "$root" || return
    if [ "$1" = gpu ]; then
        grep -rl --include='test_*.py' 'mark\.gpu' tests/engine phase-*/labs
        echo tests/authors/test_lab_05_06.py
    else # of each kind one, on the stand-in, on torch and in Triton's interpreter
        printf '%s\n' tests/engine/gpu/test_graph_standin.py tests/engine/gpu/test_gpu_reshape_and_cache.py \
            phase-05-cuda-graphs/labs/lab-06-capture-the-engine/test_lab.py \
            phase-04-attention-backends/labs/lab-06-split-kv-decode/test_lab.py
    fi
}

# `one_file gpu FILE` or `one_file dry FILE`: its tests, printed when all are done. A file whose tests are all skipped
# has failed: a test is skipped where its kernel was not right in the interpreter.
one_file() {
    local out status=0 chosen=(-m gpu)
    if [ "$1" = dry ]; then chosen=(-m "not gpu" -k cpu); fi
    out=$(cd "$root" && "$PYTHON" -m pytest -q -p no:cacheprovider "${chosen[@]}" "$2" 2>&1) || status=$?
    printf '%s\n%s\n' "-- $2" "$out"
    if [ "$status" != 0 ]; then return 1; fi
    grep -qE '[0-9]+ passed' <<<"$out"
}

run_tests() {
    local at_once
    at_once=$(nproc 2>/dev/null || echo 2)
    if [ "$at_once" -gt 8 ]; then at_once=8; fi
    test_files "$1" | xargs -P "$at_once" -I FILE bash -c 'one_file "$0" "$1"' "$1" FILE
}

list_parts() {
    local name
    echo "On a GPU the parts take at most $TOTAL_S s together, and each at most:"
    for name in "$@"; do
        part "$name" || return
        printf '%-8s %4s s  %s\n' "$name" "$limit" "$about"
        printf '                 %s\n' "${run[*]/#"$PYTHON"/python}"
        printf '         --dry   %s\n' "${dry[*]/#"$PYTHON"/python}"
    done
}

mode=gpu out=
while [ $# -gt 0 ]; do
    case $1 in
    --dry) mode=dry ;;
    --list) mode=list ;;
    --out)
        out=${2:?--out needs a folder}
        shift
        ;;
    -*)
        sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    *) break ;;
    esac
    shift
done
chosen=("${PARTS[@]}")
if [ $# -gt 0 ]; then chosen=("$@"); fi
for name in "${chosen[@]}"; do part "$name" || exit 2; done
if [ "$mode" = list ]; then
    list_parts "${chosen[@]}"
    exit
fi

out=${out:-gpu-results-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
scratch=$(mktemp -d)
child=
trap 'rm -rf "$scratch"' EXIT
trap 'kill "$child" 2>/dev/null || true; exit 130' INT TERM
export root PYTHON
export -f test_files one_file run_tests
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export MINI_VLLM_RESULTS=$out TRITON_CACHE_DIR=$scratch/triton
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=ERROR
unset LAB_IMPL PYTEST_ADDOPTS TRITON_INTERPRET
if [ "$mode" = dry ]; then export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1; fi

say() { printf "%s\n" "$@" | tee -a "$out/log.txt"; }

: >"$out/log.txt"
say "$(date -u '+%Y-%m-%d %H:%M UTC'), $([ "$mode" = dry ] && echo "a dry run, without a GPU" || echo "on a GPU")"
say "$(list_parts "${chosen[@]}")"
cd "$root" || exit 1
summary=() failed=0 SECONDS=0
for name in "${chosen[@]}"; do
    part "$name"
    command=("${run[@]}")
    if [ "$mode" = dry ]; then
        command=("${dry[@]}") limit=$DRY_S
    elif [ $((TOTAL_S - SECONDS)) -lt "$limit" ]; then
        limit=$((TOTAL_S - SECONDS))
    fi
    say "" "== $name: $about"
    began=$SECONDS status=0
    if [ "$limit" -le 0 ]; then
        status=124
    else
        # Into the file and not through a pipe, which a process that outlives its part would hold open.
        before=$(wc -c <"$out/log.txt")
        timeout -k 3 "$limit" "${command[@]}" >>"$out/log.txt" 2>&1 </dev/null &
        child=$!
        wait "$child" || status=$?
        tail -c "+$((before + 1))" "$out/log.txt"
    fi
    case $status in
    0) how=passed ;;
    124 | 137) how="ran out of time" ;;
    *) how="FAILED with status $status" ;;
    esac
    if [ "$status" != 0 ]; then failed=1; fi
    summary+=("$(printf '%-8s %-24s %4d s' "$name" "$how" $((SECONDS - began)))")
    say "== $name: $how"
done
say "" "== summary, $SECONDS s" "${summary[@]}" "results: $out"
exit "$failed"
