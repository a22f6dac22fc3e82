"""All that depends on a version of vLLM: reading its configs, its parallel state, its platform hook."""
