"""Makes .venv-contract: vLLM 0.30 for CPU, vllm-ascend from its source distribution, and what their tests ask for.

An environment beside `.venv`, because vllm-ascend pairs with one release of vLLM and takes a process over when it is
installed. The steps are those of `tools.setup_env`; this folder holds the two locks and what vllm-ascend needs on top.
Runs on the system's Python with the standard library alone, as `tools.setup_env` does.
"""
