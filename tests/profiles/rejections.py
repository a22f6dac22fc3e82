"""Scenes that the twin rejects, and what it says: argument, value, rule, source, remedy, what the device would do."""

from dataclasses import dataclass

from profiles.layers import LEGAL_91
from profiles.scenes import Scene

A2_A3 = ("a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2")
SILENT = r".* The device would not reject: it "


@dataclass(frozen=True)
class Rejection:
    """The error's text begins like `message`, at creation of the buffer or at the call."""

    scene: Scene
    where: str
    message: str


def on_950_of_91(change: str = "", kind: str = "a8w8-fp", **buffer: object) -> Scene:
    return Scene("950@9.1", kind, buffer, change, size=LEGAL_91)


REFUSALS = [
    Rejection(
        Scene("a2@9.1", "a16w16", {"hidden": 1280}),
        "creation",
        r"hidden=1280; expected in \[1024, 8192\] and a multiple of 512 with profile a2@9\.1 "
        r"\(torch_api\.txt:441.*\)\. Pad with zeros to 1536\.",
    ),
    Rejection(
        Scene("a3@9.2", "a16w16", {"num_max_tokens_per_rank": 4097}),
        "creation",
        r"num_max_tokens_per_rank=4097; expected in \[1, 4096\]",
    ),
    Rejection(Scene("950@9.2", "a8w8-fp", {"num_topk": 33}), "creation", r"num_topk=33; expected in \[1, 32\]"),
    Rejection(
        on_950_of_91("five_ids", num_topk=5),
        "call",
        r"num_topk=5; expected one of 6, 8 with profile 950@9\.1 \(torch_api\.txt:456",
    ),
    Rejection(
        Scene("950@9.2", "a8w8-fp", topology="urma", change="swigluoai"),
        "call",
        "activation='swigluoai'; expected one of swiglu, situglu on URMA",
    ),
    Rejection(
        Scene("950@9.2", "a8w8-fp", {"combine_comm_mode": 1}, topology="urma"),
        "call",
        "combine_comm_mode=1; expected 0 on URMA",
    ),
    # creation runs the size function alone, which looks at none of these (op csrc 9.1.0 and 2026-08)
    Rejection(
        Scene("a3@9.1", "a16w16", {"comm_alg": "ring"}), "call", r"comm_alg='ring'; expected '' .* profile a3@9\.1 "
    ),
    Rejection(
        Scene("950@9.2", "a8w8-fp", {"combine_quant_mode": 1}),
        "call",
        r"combine_quant_mode=1; expected one of 0, 3, 4 with profile 950@9\.2 ",
    ),
    Rejection(
        Scene("a2@9.1", "a8w8-int", {"dispatch_quant_out_dtype": None}),
        "call",
        r"\(dispatch_quant_mode, dispatch_quant_out_dtype\)=\(2, None\); expected one of .*\(2, INT8\) with",
    ),
    Rejection(
        Scene("950@9.2", "a8w8-fp", {"combine_comm_mode": 1, "combine_quant_mode": 3}),
        "call",
        "combine_comm_mode=1; expected 0 with combine_quant_mode=3 ",
    ),
    *(
        Rejection(
            Scene(name, "a16w16", change="router_bf16"),
            "call",
            rf"topk_weights\.dtype=BF16; expected FLOAT .*Convert with \.float\(\)\.{SILENT}reads the BF16 memory",
        )
        for name in A2_A3
    ),
    Rejection(
        Scene("950@9.2", "a8w8-fp", change="clamp_0"),
        "call",
        rf"activation_clamp=0\.0; expected above 0 {SILENT}clamps the up half to 0",
    ),
    Rejection(
        on_950_of_91("stacked_clamp"),
        "call",
        rf"activation_clamp=7\.0; expected None {SILENT}computes without the clamp",
    ),
    Rejection(
        on_950_of_91(dispatch_quant_out_dtype=296),
        "creation",
        rf"dispatch_quant_out_dtype=FLOAT4_E2M1; expected {SILENT}quantises to FLOAT8_E5M2",
    ),
    Rejection(
        on_950_of_91("clamp_0", kind="a8w4-fp"),
        "call",
        rf"l1_weights=FLOAT4_E2M1 and {SILENT}reads the FP4 bytes as FP8",
    ),
    Rejection(
        on_950_of_91("stacked_fewer_rows"),
        "call",
        "x: rows=3; expected 4, num_max_tokens_per_rank of the buffer: no other number",
    ),
    Rejection(
        Scene("a3@9.1", "a8w4-int"),
        "call",
        r"max_recv_token_num=0; expected at least 32: 2 x .*would not reject: once half of the capacity",
    ),
    Rejection(
        Scene("a3@9.1", "a8w4-int", {"max_recv_token_num": 31}),
        "call",
        "max_recv_token_num=31; expected at least 32",
    ),
    Rejection(
        Scene("a2@9.2", "a8w4-int", change="int32_rows"),
        "call",
        rf"l1_weights, l2_weights=ND and ND; expected FRACTAL_NZ {SILENT}takes int32 memory",
    ),
    Rejection(
        Scene("a2@9.2", "a16w16", change="stacked"),
        "call",
        "l1_weights=one 3-D stack of all experts; expected a list",
    ),
    Rejection(Scene("950@9.2", "a8w8-fp", change="mask"), "call", "x_active_mask=a tensor; expected None"),
    Rejection(
        Scene("a2@9.1", "a16w16", environment={"HCCL_BUFFSIZE": "10"}),
        "call",
        r"ccl_buffer_size=20971520; expected at least \d+ bytes .*Set HCCL_BUFFSIZE=11 ",
    ),
]
