"""The MoE layer without vLLM: where it sits, its buffer, its calls, its rows and their report."""
