"""Canonical experts, and every conversion between them and the operands of a use case. No vLLM, no plan."""
