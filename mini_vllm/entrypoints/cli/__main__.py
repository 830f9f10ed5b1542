"""`python -m mini_vllm.entrypoints.cli` is the command `mini-vllm`."""

from mini_vllm.entrypoints.cli import main

raise SystemExit(main())
