"""Arguments of get_symm_buffer_for_mega_moe; checked again at every call, because attributes may have changed."""

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.dtypes import normalise_dtype
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.checks.profile import check_buffer_profile
from vllm_megamoe.ops.twin.header import MAX_LOCAL_EXPERTS

README = "operator_readme.txt, attributes"
_LEAST = {"num_experts": 1, "num_max_tokens_per_rank": 0, "num_topk": 1, "hidden": 1, "max_recv_token_num": 0}
_CHOICES = {
    "dispatch_quant_mode": (0, 2, 4),
    "combine_quant_mode": (0, 3, 4),
    "topk_weights_type": (0, 1),
    "combine_comm_mode": (0, 1),
    "comm_alg": ("",),
}
_TOLD_BY_THE_PROFILE = ("combine_quant_mode", "combine_comm_mode", "comm_alg")
"""A product's creation does not look at these (op csrc, size function); its rules reject them at the call."""
# Output types of each dispatch mode. The documents leave None open for INT8 too; the tiling of arch22 rejects it.
_OUT_TYPES: dict[int, tuple[AclDtype | None, ...]] = {
    0: (None, AclDtype.BF16, AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1),
    2: (AclDtype.INT8,),
    4: (AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1),
}


def check_buffer(buffer: SymmBuffer, config: Settings) -> None:
    """Reject a configuration that no use case has, or that the profile's product does not take.

    Raises:
        OperatorError: naming the first attribute that is wrong.
    """
    for name, least in _LEAST.items():
        value = getattr(buffer, name)
        if not isinstance(value, int) or value < least:
            raise rejection(name, repr(value), f"an int of at least {least}", README, "Set it so.")
    product = config.found_profile.product != "none"
    for name, choices in _CHOICES.items():
        value = getattr(buffer, name)
        if value not in choices and not (product and name in _TOLD_BY_THE_PROFILE):
            expected = ", ".join(repr(choice) for choice in choices)
            raise rejection(name, repr(value), f"one of {expected}", README, "Set it so.")
    _check_experts(buffer)
    out = out_type(buffer)
    if not product or buffer.created is not None:
        _check_modes(buffer, out)
    check_buffer_profile(buffer, config)


def out_type(buffer: SymmBuffer) -> AclDtype | None:
    """`dispatch_quant_out_dtype` in any spelling."""
    name = "dispatch_quant_out_dtype"
    try:
        return normalise_dtype(buffer.dispatch_quant_out_dtype, name)
    except LayoutError as e:
        expected = "a torch dtype, 1, 23, 24, or an ACL number + 256"
        raise rejection(name, repr(buffer.dispatch_quant_out_dtype), expected, README, "Set it so.") from e


def _check_experts(buffer: SymmBuffer) -> None:
    ranks, experts = buffer.ep_world_size, buffer.num_experts
    if experts % ranks:
        raise rejection(
            "num_experts",
            experts,
            f"a multiple of the {ranks} ranks of the group",
            README,
            "Choose a group whose size divides it.",
        )
    if experts // ranks > MAX_LOCAL_EXPERTS:
        raise rejection(
            "num_experts",
            experts,
            f"gives {experts // ranks} experts per rank, the most are {MAX_LOCAL_EXPERTS}",
            "operator_readme.txt, localMoeExpertNum",
            "Use more ranks.",
        )


def _check_modes(buffer: SymmBuffer, out: AclDtype | None) -> None:
    mode = buffer.dispatch_quant_mode
    if out not in _OUT_TYPES[mode]:
        expected = ", ".join("None" if dtype is None else dtype.name for dtype in _OUT_TYPES[mode])
        raise rejection(
            "dispatch_quant_out_dtype",
            repr(buffer.dispatch_quant_out_dtype),
            f"one of {expected} with dispatch_quant_mode={mode}",
            "operator_readme.txt, use case tables",
            "Give the type that the tokens are quantised to.",
        )
    if buffer.combine_comm_mode == 1 and buffer.combine_quant_mode != 0:
        raise rejection(
            "combine_comm_mode",
            1,
            f"0 with combine_quant_mode={buffer.combine_quant_mode}",
            "operator_readme.txt, combineCommMode",
            "Set one of the two to 0.",
        )
