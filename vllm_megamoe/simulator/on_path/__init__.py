"""Folder for PYTHONPATH; see `vllm_megamoe.simulator.install`."""
