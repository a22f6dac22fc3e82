"""Rows of Ascend 950 (arch35): 9.1.0, then 9.2 on both topologies."""

from dataclasses import replace

from vllm_megamoe.profiles.facts import C0_32, E2M1, E4M3, E5M2, ND, NZ
from vllm_megamoe.profiles.limits.row import (
    API,
    ARCH35_91,
    ARCH35_92,
    ARCH35_NEWEST,
    CONTEXT,
    CSRC_91,
    CSRC_92,
    KERNEL35_91,
    README,
    WRAPPER_91,
    Cell,
    Limits,
    Numbers,
)
from vllm_megamoe.profiles.use_cases import UseCase

ASCEND950_91 = Limits(
    ep_sizes=Cell(Numbers(2, 768), f"{API}:459; {ARCH35_91}:55,56; {CSRC_91}:291-292"),
    hidden=Cell(Numbers.listed(4096, 5120, 7168), f"{API}:455; {ARCH35_91}:863-865"),
    created_hidden=Cell(Numbers(1024, 8192), f"{CSRC_91}:293-294"),
    intermediate=Cell(
        Numbers.listed(512, 1024, 1536, 2048, 3584),
        f"{API}:458,467 and {ARCH35_91}:885-889 (what they list is N = 2I: 1024, 2048, 3072, 4096, 7168)",
    ),
    topk=Cell(Numbers.listed(6, 8), f"{API}:456; {ARCH35_91}:870-872"),
    created_topk=Cell(Numbers(1, 16), f"{CSRC_91}:299-300"),
    max_tokens=Cell(512, f"{API}:454,460; {CSRC_91}:295-296; {ARCH35_91}:50"),
    max_experts=Cell(1024, f"{API}:431; {ARCH35_91}:57"),
    created_experts=Cell(Numbers(1, 1024), f"{CSRC_91}:297-298"),
    max_experts_per_rank=Cell(16, f"{API}:457; {ARCH35_91}:52"),
    rows=Cell("full", f"{API}:460; {ARCH35_91}:330-331"),
    bounded_receive=Cell(True, f"{ARCH35_91}:277-282"),
    receive_factor_int4=Cell(0, f"{API}:48 (no INT4)"),
    dispatch=Cell(
        frozenset({(4, E5M2), (4, E4M3)}),
        f"{API}:461-462 and {KERNEL35_91} (A8W8 kernel only); {ARCH35_91}:285-300 (FLOAT4_E2M1 too)",
    ),
    prequantised=Cell(False, f"{API}:465; {ARCH35_91}:431,702"),
    use_cases=Cell(
        frozenset({UseCase.A8W8_FP}),
        f"{API}:42-48,467 and {KERNEL35_91} (A8W8 kernel only); {ARCH35_91}:719-735 (FLOAT4_E2M1 weights too)",
    ),
    formats=Cell(
        {(E5M2, E5M2): ((ND, ND),), (E4M3, E4M3): ((ND, ND),)},
        f"{API}:325-326,330-331; {ARCH35_91}:797-805",
    ),
    layouts=Cell(("stacked",), f"{API}:368-371; {ARCH35_91}:440-460"),
    router_weights=Cell(
        ("FLOAT",), f"{API}:321 (no BFLOAT16 on Ascend 950); {ARCH35_91}:712-717 and {API}:539 (BF16 too)"
    ),
    mask=Cell(False, f"{API}:339,465; {ARCH35_91}:429"),
    activations=Cell(("swiglu",), f"{API}:340"),
    clamp=Cell("none", f"{ARCH35_91} and {KERNEL35_91} (never read it); {API}:341 (any from 0 on)"),
    combine_quant_modes=Cell((0,), f"{API}:463; {ARCH35_91}:318-321"),
    topk_weights_types=Cell((0,), f"{API}:291 and {WRAPPER_91} (no such argument)"),
    combine_comm_modes=Cell((0,), f"{API}:291 and {WRAPPER_91} (no such argument)"),
    max_shared_experts=Cell(
        0,
        f"{API}:295 and {WRAPPER_91} (no such arguments)",
        "the operator of CANN 9.1.0 has no arguments for them",
    ),
    shared_use_cases=Cell(frozenset(), f"{API}:295 and {WRAPPER_91} (no such arguments)"),
    mixed_shared=Cell(False, f"{API}:295 and {WRAPPER_91} (no such arguments)"),
    many_buffers=Cell(False, CONTEXT),
)

ASCEND950_92_MTE = Limits(
    ep_sizes=Cell(Numbers(2, 1024), f"{README}:573; {ARCH35_92}:66,67; {CSRC_92}:279"),
    hidden=Cell(Numbers(1024, 8192, 64), f"{README}:569 (64); {ARCH35_92}:56-59,1873 (32, and 64 for fp4)"),
    created_hidden=Cell(Numbers(1024, 8192), f"{CSRC_92}:281"),
    intermediate=Cell(Numbers(256, 4096, 128), f"{README}:572; {ARCH35_92}:61,64,65 (N = 2I)"),
    topk=Cell(Numbers(1, 32), f"{README}:570; {ARCH35_92}:52,53"),
    created_topk=Cell(Numbers(1, 32), f"{CSRC_92}:285"),
    max_tokens=Cell(None, f"{README}:567-568; {CSRC_92}:282"),
    max_experts=Cell(2048, f"{README}:574; {ARCH35_92}:68"),
    created_experts=Cell(Numbers(1, 2048), f"{CSRC_92}:283"),
    max_experts_per_rank=Cell(1024, f"{README}:571; {ARCH35_92}:55"),
    rows=Cell("any", f"{README}:567"),
    bounded_receive=Cell(True, f"{README}:575; {ARCH35_92}:517-523 ({ARCH35_NEWEST}: on URMA only)"),
    receive_factor_int4=Cell(0, f"{README}:85 (no INT4)"),
    dispatch=Cell(
        frozenset((mode, out) for mode in (0, 4) for out in (E5M2, E4M3, E2M1)),
        f"{README}:576-577; {ARCH35_NEWEST} ({ARCH35_92}:527-540: mode 4 only)",
    ),
    prequantised=Cell(True, f"{README}:578; {ARCH35_NEWEST}"),
    use_cases=Cell(frozenset({UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP}), f"{README}:85,577,593,608"),
    formats=Cell(
        {
            (E5M2, E5M2): ((ND, ND),),
            (E4M3, E4M3): ((ND, ND), (NZ, NZ)),
            (E4M3, E2M1): ((C0_32, C0_32),),
            (E2M1, E2M1): ((NZ, C0_32),),
        },
        f"{README}:569,607; {ARCH35_NEWEST} (format table: also ND with C0_32 for A4W4)",
    ),
    layouts=Cell(("list", "stacked"), f"{README}:609; {ARCH35_92}:1278"),
    router_weights=Cell(("FLOAT", "BF16"), f"{README}:595; {ARCH35_92}:1715"),
    mask=Cell(False, f"{README}:596; {ARCH35_92}:1136"),
    activations=Cell(("swiglu", "swiglustep", "swigluoai", "situglu"), f"{README}:566; {ARCH35_92}:358-363"),
    clamp=Cell("positive", f"{ARCH35_92}:372-388 and op kernel arch35 (0 is executed); {README}:51 (0 is off)"),
    combine_quant_modes=Cell((0, 3, 4), f"{README}:579; {ARCH35_92}:567-571"),
    topk_weights_types=Cell((0, 1), f"{README}:588; {ARCH35_92}:592-595"),
    combine_comm_modes=Cell((0, 1), f"{README}:589"),
    max_shared_experts=Cell(4, f"{README}:584; {ARCH35_92}:586-590", "the operator takes at most 4 of a rank"),
    shared_use_cases=Cell(
        frozenset({UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP}),
        f"{README}:492,593-594",
        "the operator takes FP8 and FP4 only",
    ),
    mixed_shared=Cell(True, f"{README}:593-594 ({ARCH35_92}: alike only)"),
    many_buffers=Cell(False, CONTEXT),
)

ASCEND950_92_URMA = replace(
    ASCEND950_92_MTE,
    hidden=Cell(Numbers(1024, 8192, 1024), f"{README}:569; {ARCH35_92}:1873"),
    intermediate=Cell(
        Numbers(256, 4096, 128),
        f"{README}:572; {ARCH35_NEWEST} ({ARCH35_92}:1893-1894, older: N = 2I a multiple of 1024)",
    ),
    dispatch=Cell(frozenset((4, out) for out in (E5M2, E4M3, E2M1)), f"{README}:576-578"),
    prequantised=Cell(False, f"{README}:578"),
    activations=Cell(("swiglu", "situglu"), f"{README}:587; {ARCH35_NEWEST} ({ARCH35_92}:421, older: swiglu only)"),
    combine_comm_modes=Cell((0,), f"{README}:590"),
    mixed_shared=Cell(False, f"{README}:594"),
)
