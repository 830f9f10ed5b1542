"""`python -m mini_vllm.cli` is the command `mini-vllm`."""

from mini_vllm.cli import main

raise SystemExit(main())
