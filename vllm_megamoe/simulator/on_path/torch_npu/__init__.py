"""Found as `torch_npu` where its folder stands on PYTHONPATH: puts the simulated package into this one's place."""

from vllm_megamoe.simulator.install import install

install()
