"""Makes .venv-2.10: torch as a real host has it, for the tests of all that needs no vLLM.

On the standard library alone, as tools.setup_env; it needs a C compiler where pip's torch is a build with CUDA.
"""
