"""A `vllm serve` command line: read, corrected, and written again."""
