# `mini-vllm serve` in a container. SETUP.md says how to build it and how to run it.

FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY mini_vllm mini_vllm
COPY course course
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir ".[serve]"

FROM python:3.13-slim
COPY --from=build /venv /venv
RUN useradd --uid 10001 --create-home server
USER 10001
WORKDIR /home/server
ENV PATH=/venv/bin:$PATH
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# Others reach 0.0.0.0, so there is no start without a key. Arguments of `docker run` go to `mini-vllm serve`.
ENTRYPOINT ["/bin/sh", "-c", ": \"${VLLM_API_KEY:?is empty; run the image with -e VLLM_API_KEY=...}\"; exec mini-vllm serve --host 0.0.0.0 \"$@\"", "mini-vllm"]
