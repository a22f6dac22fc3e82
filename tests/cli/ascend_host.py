"""A host with NPUs, as doctor sees it: devices, driver, vllm-ascend's build, and both sides of the operator."""

from vllm_megamoe.cli.doctor.ascend_host import AscendHost, Source

# Arguments that both revisions have, and those of each (torch_api.txt; op wrapper mega_moe.py of 2026-08).
COMMON = {"group", "num_experts", "hidden", "x", "topk_ids", "sym_buffer", "activation", "activation_clamp"}
NEWER = {"topk_weights_type", "activation_params", "shared_l1_weights"}


def wrapper(names: set[str]) -> Source:
    return Source(frozenset(names), "0123456789ab", "2026-07-21", "/site/cann_ops_transformer/ops/mega_moe.py")


def kernels(*names: str) -> Source:
    return Source(frozenset(names), "ba9876543210", "2026-07-21", "/cann/include/aclnnop/aclnn_mega_moe.h")


HOST = AscendHost(
    npus=8,
    built_for="A3",
    wrapper=wrapper(COMMON),
    kernels=kernels("activation", "activationClamp"),
    records={"ops_transformer": "9.1.0 20260721"},
    driver="25.5.0",
    firmware="7.8.0",
)
