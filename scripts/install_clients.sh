#!/usr/bin/env bash
# Install the clients of tests/authors/test_server_clients.py, each into an environment of its own below FOLDER.
#
#     bash scripts/install_clients.sh FOLDER
#     MINI_VLLM_CLIENTS=FOLDER pytest tests/authors/test_server_clients.py
#
# They want different versions of `openai`, so one environment would not do. Node.js 20 is needed for Vercel's.
set -euo pipefail
folder=$(mkdir -p "${1:?the folder}" && cd "$1" && pwd)

with() {
    local name=$1
    shift
    python3 -m venv "$folder/$name"
    "$folder/$name/bin/pip" install -q --disable-pip-version-check "$@"
}

with openai "openai>=3,<4"
with instructor "instructor>=1.17,<2"
with langchain "langchain-openai>=1.7,<2"
with llama_index "llama-index-llms-openai-like>=0.8,<0.9"
with litellm "litellm>=1.110,<2"
with pydantic_ai "pydantic-ai-slim[openai]>=2.68,<3"
mkdir -p "$folder/vercel"
(cd "$folder/vercel" && npm install --silent "ai@^6" "@ai-sdk/openai-compatible@^2" "zod@^4")
