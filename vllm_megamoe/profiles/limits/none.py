"""The row of profile `none`: what the twin takes, which is all that the documents describe."""

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.profiles.facts import E2M1, E4M3, E5M2, MX_ELEMENTS
from vllm_megamoe.profiles.limits.row import README, Cell, Limits, Numbers
from vllm_megamoe.profiles.use_cases import UseCase

_TWIN = "profile none: the CPU twin"
_ANY: Cell[Numbers] = Cell(Numbers(1), _TWIN)
_EVERY = tuple(fmt.name for fmt in AclFormat)
_PAIRS = tuple((one, other) for one in _EVERY for other in _EVERY)

NONE = Limits(
    ep_sizes=_ANY,
    hidden=_ANY,
    created_hidden=_ANY,
    intermediate=_ANY,
    topk=_ANY,
    created_topk=_ANY,
    max_tokens=Cell(None, _TWIN),
    max_experts=Cell(1 << 20, _TWIN),
    created_experts=_ANY,
    max_experts_per_rank=Cell(1024, f"{_TWIN}; {README}:571"),
    rows=Cell("any", _TWIN),
    bounded_receive=Cell(False, _TWIN),
    receive_factor_int4=Cell(1, _TWIN),
    dispatch=Cell(
        frozenset(
            {
                (0, None),
                (0, "BF16"),
                (2, "INT8"),
                *((mode, out) for mode in (0, 4) for out in MX_ELEMENTS),
            }
        ),
        _TWIN,
    ),
    prequantised=Cell(True, _TWIN),
    use_cases=Cell(frozenset(UseCase), _TWIN),
    formats=Cell(
        dict.fromkeys(
            (
                (None, "BF16"),
                ("INT8", "INT8"),
                ("INT8", "INT4"),
                (E5M2, E5M2),
                (E4M3, E4M3),
                (E4M3, E2M1),
                (E2M1, E2M1),
            ),
            _PAIRS,
        ),
        _TWIN,
    ),
    layouts=Cell(("list", "stacked"), _TWIN),
    router_weights=Cell(("FLOAT", "BF16"), _TWIN),
    mask=Cell(True, _TWIN),
    activations=Cell(("swiglu", "swiglustep", "swigluoai", "situglu"), _TWIN),
    clamp=Cell("any", _TWIN),
    combine_quant_modes=Cell((0, 3, 4), _TWIN),
    topk_weights_types=Cell((0, 1), _TWIN),
    combine_comm_modes=Cell((0, 1), _TWIN),
    max_shared_experts=Cell(4, f"{_TWIN}; {README}:584", "the operator takes at most 4 of a rank"),
    # The twin computes INT8 ones too; no product has them, so a plan for it would hold nowhere else.
    shared_use_cases=Cell(
        frozenset({UseCase.A16W16, UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP}),
        f"{_TWIN} (BF16); {README}:492 (FP8 and FP4)",
        "the operator takes FP8 and FP4 only, the twin BF16 too",
    ),
    mixed_shared=Cell(True, _TWIN),
    many_buffers=Cell(True, _TWIN),
)
