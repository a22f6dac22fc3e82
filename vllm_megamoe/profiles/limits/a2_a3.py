"""Rows of Atlas A2 and A3: one operator (arch22), so the revisions share most cells."""

from dataclasses import replace

from vllm_megamoe.profiles.facts import ND, NZ
from vllm_megamoe.profiles.limits.row import (
    API,
    ARCH22_91,
    ARCH22_92,
    CONTEXT,
    CSRC_91,
    CSRC_92,
    DOCUMENT_92,
    KERNEL22,
    README,
    WRAPPER_91,
    Cell,
    Limits,
    Numbers,
)
from vllm_megamoe.profiles.use_cases import UseCase

_NO_SHARED = "the operator takes none on A2 and A3"

A2_91 = Limits(
    ep_sizes=Cell(
        Numbers.listed(2, 4, 8, 16, 32),
        f"{ARCH22_91}:100 and {CSRC_91}:260-262 (2 to 32); {API}:436 (2 to 64)",
    ),
    hidden=Cell(Numbers(1024, 8192, 512), f"{API}:441; {ARCH22_91}:87,88,95"),
    created_hidden=Cell(Numbers(1024, 8192, 512), f"{API}:441; {CSRC_91}:263-264"),
    intermediate=Cell(Numbers(1024, 3072, 512), f"{API}:442; {ARCH22_91}:89,90"),
    topk=Cell(Numbers(1, 16), f"{API}:440; {ARCH22_91}:91,92"),
    created_topk=Cell(Numbers(1, 16), f"{API}:440; {CSRC_91}:269-270"),
    max_tokens=Cell(4096, f"{API}:438; {CSRC_91}:265-266; {ARCH22_91}:86"),
    max_experts=Cell(1024, f"{API}:431; {ARCH22_91}:99"),
    created_experts=Cell(Numbers(1, 2048), f"{CSRC_91}:267-268"),
    max_experts_per_rank=Cell(128, f"{API}:437; {ARCH22_91}:94"),
    rows=Cell("alike", f"{API}:435"),
    bounded_receive=Cell(False, f"{API}:439; {ARCH22_91}:183-188 (no upper bound)"),
    receive_factor_int4=Cell(1, "op kernel arch22 9.1.0 06be6c2ca (CombineV2 of A3 alone counts packed rows)"),
    dispatch=Cell(
        frozenset({(0, None), (0, "BF16"), (2, "INT8")}),
        f"{API}:443-444,449-451; {ARCH22_91}:194-237",
    ),
    prequantised=Cell(False, f"{API}:319,465; {ARCH22_91}:508,958"),
    use_cases=Cell(frozenset({UseCase.A16W16, UseCase.A8W8_INT, UseCase.A8W4_INT}), f"{API}:47,449-451"),
    formats=Cell(
        {
            (None, "BF16"): ((ND, ND),),
            ("INT8", "INT8"): ((NZ, NZ),),
            ("INT8", "INT4"): ((NZ, NZ),),
        },
        f"{API}:322-324,327-329; {ARCH22_91}:630-634",
    ),
    layouts=Cell(("list",), f"{API}:368-371; {ARCH22_91}:647,717"),
    router_weights=Cell(("FLOAT",), f"{KERNEL22} (float32 only); {API}:321 and {ARCH22_91}:574 (BF16 too)"),
    mask=Cell(True, f"{API}:339; {ARCH22_91}:583-608"),
    activations=Cell(("swiglu",), f"{API}:340; {ARCH22_91}:272"),
    clamp=Cell("any", f"{API}:341; {ARCH22_91}:276-284"),
    combine_quant_modes=Cell((0,), f"{ARCH22_91}:242; {API}:311"),
    topk_weights_types=Cell((0,), f"{API}:291 and {WRAPPER_91} (no such argument)"),
    combine_comm_modes=Cell((0,), f"{API}:291 and {WRAPPER_91} (no such argument)"),
    max_shared_experts=Cell(0, f"{API}:295 and {WRAPPER_91} (no such arguments)", _NO_SHARED),
    shared_use_cases=Cell(frozenset(), f"{API}:295 and {WRAPPER_91} (no such arguments)"),
    mixed_shared=Cell(False, f"{API}:295 and {WRAPPER_91} (no such arguments)"),
    many_buffers=Cell(True, CONTEXT),
)

A3_91 = replace(
    A2_91,
    receive_factor_int4=Cell(
        2, "op kernel arch22 9.1.0 06be6c2ca, CombineV2 (packed rows against tokens; repaired in 9aa8113f8)"
    ),
)

A2_92 = replace(
    A2_91,
    ep_sizes=Cell(
        Numbers.listed(2, 4, 8, 16, 32, 64),
        f"{API}:436 (2 to 64); {ARCH22_92}:113 and {CSRC_92}:252-254 (2 to 128); {DOCUMENT_92}:1285 (2 to 32, older)",
    ),
    hidden=Cell(Numbers(1024, 8192, 512), f"{DOCUMENT_92}:1291; {ARCH22_92}:101,102,108"),
    created_hidden=Cell(Numbers(1024, 8192, 512), f"{CSRC_92}:255-256"),
    intermediate=Cell(
        Numbers(512, 3072, 512),
        f"{DOCUMENT_92}:1292 (512 to 3072); {ARCH22_92}:103,879 (at least 512, no upper bound); "
        f"{API}:442 (1024 to 3072, of 9.1)",
    ),
    topk=Cell(Numbers(1, 16), f"{DOCUMENT_92}:1290; {ARCH22_92}:104,105"),
    created_topk=Cell(Numbers(1, 16), f"{CSRC_92}:261"),
    max_tokens=Cell(4096, f"{DOCUMENT_92}:1288; {CSRC_92}:257-258; {ARCH22_92}:100"),
    max_experts=Cell(1024, f"{DOCUMENT_92}:1286; {ARCH22_92}:112"),
    created_experts=Cell(Numbers(1, 2048), f"{CSRC_92}:259-260"),
    max_experts_per_rank=Cell(128, f"{DOCUMENT_92}:1287; {ARCH22_92}:107"),
    rows=Cell("alike", f"{DOCUMENT_92}:1284; {API}:435"),
    bounded_receive=Cell(False, f"{README}:501; {ARCH22_92}:197 (no upper bound)"),
    receive_factor_int4=Cell(1, "op kernel arch22 HEAD 577814407 (since 9aa8113f8)"),
    dispatch=Cell(frozenset({(0, None), (0, "BF16"), (2, "INT8")}), f"{README}:550-554"),
    prequantised=Cell(False, f"{README}:556; {ARCH22_92}:634"),
    use_cases=Cell(frozenset({UseCase.A16W16, UseCase.A8W8_INT, UseCase.A8W4_INT}), f"{README}:84,550-552"),
    formats=replace(A2_91.formats, source=f"{API}:322-324,327-329; {ARCH22_92}:792-795"),
    layouts=Cell(("list",), f'{API}:368-371; {ARCH22_92} ("must be 2-dimension, but got 3 dim")'),
    router_weights=Cell(("FLOAT",), f"{KERNEL22} (float32 only); {README}:483 and {ARCH22_92}:727 (BF16 too)"),
    mask=Cell(True, f"{README}:490; {ARCH22_92}:738-769"),
    activations=Cell(("swiglu", "swiglustep", "swigluoai", "situglu"), f"{README}:508; {ARCH22_92}:289-303"),
    clamp=Cell("any", f"{README}:509; {ARCH22_92}:371-374"),
    combine_quant_modes=Cell((0,), f"{ARCH22_92}:263"),
    topk_weights_types=Cell((0,), f"{ARCH22_92} (never reads topkWeightsType)"),
    combine_comm_modes=Cell((0,), f"{README}:560"),
    max_shared_experts=Cell(
        0,
        f"{README}:564,574 (Ascend 950 only); op kernel arch22 HEAD 577814407 (takes the tensors, reads none)",
        _NO_SHARED,
    ),
    shared_use_cases=Cell(frozenset(), f"{README}:564,594 (Ascend 950 only)"),
    mixed_shared=Cell(False, f"{README}:564,594 (Ascend 950 only)"),
)

A3_92 = A2_92
