"""`python -m vllm_megamoe.cli`, the same as the console script."""

from vllm_megamoe.cli.app import main

main()
