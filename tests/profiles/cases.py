"""One value inside and one outside, at least, for every rule and profile: limits written out from the documents.

Nothing here is read from the table of limits. The comments name the lines that a number stands in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, nan
from typing import Any

from profiles.legal import (
    A2_91,
    A2_92,
    A2_A3,
    A3_91,
    A3_92,
    ALL,
    C0_32,
    E4M3,
    E5M2,
    FP4,
    N91,
    N92,
    ND,
    NEW,
    NINES,
    NZ,
    OLD,
    URMA,
    Change,
    buffer,
    call,
    earlier,
    routed,
    shared,
)

LEGAL = Change()


@dataclass(frozen=True)
class Case:
    """What a rule says in some profiles.

    `message` is a pattern of the rejection; `silent` one of what the device would do, empty where it rejects itself.
    """

    rule: str
    profiles: tuple[str, ...]
    inside: tuple[Change, ...]
    outside: tuple[Change, ...]
    message: str
    silent: str = ""


CASES: list[Case] = []


def case(
    rule: str,
    profiles: Iterable[str],
    inside: Iterable[Change],
    outside: Iterable[Change],
    message: str,
    silent: str = "",
) -> None:
    CASES.append(Case(rule, tuple(profiles), tuple(inside), tuple(outside), message, silent))


def ranks(*sizes: int) -> list[Change]:
    """Communicators of these sizes, with two experts on each rank, or one where there are many."""
    return [buffer(ep_world_size=n, num_experts=n * (2 if n < 600 else 1)) for n in sizes]


def each(make: Any, name: str, *values: Any) -> list[Change]:
    """One change for each value of a field."""
    return [make(**{name: value}) for value in values]


# Communicator. torch_api.txt:436,459; operator_readme.txt:573,515; 9.1.0's own code: A2/A3 up to 32.
case(
    "ep-size", OLD, ranks(2, 4, 8, 16, 32), ranks(1, 3, 64), r"ep_world_size=\d+; expected one of 2, 4, 8, 16, 32 with"
)
case(
    "ep-size",
    NEW,
    ranks(2, 4, 8, 16, 32, 64),
    ranks(1, 6, 128),
    r"ep_world_size=\d+; expected one of 2, 4.*32, 64 with",
)
case("ep-size", [N91], ranks(2, 3, 768), ranks(1, 769), r"ep_world_size=\d+; expected in \[2, 768\] with")
case("ep-size", NINES, ranks(2, 3, 1024), ranks(1, 1025), r"ep_world_size=\d+; expected in \[2, 1024\] with")
case("topology", [N91], [LEGAL], [Change(topology="urma")], "topology='urma'; expected 'mte' with")
case(
    "ranks-per-server",
    [URMA],
    [LEGAL, *(buffer(ep_world_size=4, rank_num_per_server=n) for n in (2, 4))],
    [buffer(ep_world_size=4, rank_num_per_server=n) for n in (1, 3)],
    r"rank_num_per_server=\d; expected at least 2, and a divisor of the 4 ranks",
)
case(
    "capture",
    ALL,
    [LEGAL],
    [buffer(capturing=True)],
    ".* while a graph is captured; expected no graph capture",
    "a replay uses",
)
case(
    "one-buffer",
    (N91, *NINES),
    [LEGAL],
    each(buffer, "buffers_before", 1, 3),
    r"group=a communicator that \d buffer\(s\).*destroyed ones included; expected a communicator without any",
    "no memory and no peer addresses",
)
# torch_api.txt:378, operator_readme.txt:529
case(
    "alike",
    ALL,
    [LEGAL, earlier(), earlier(num_topk=4, hidden=2048, combine_quant_mode=3)],
    [
        earlier(num_experts=32),
        earlier(max_recv_token_num=7),
        earlier(dispatch_quant_mode=2),
        earlier(dispatch_quant_out_dtype="INT8"),
        earlier(num_max_tokens_per_rank=8),
        earlier(topk_weights_type=1),
        earlier(combine_comm_mode=1),
    ],
    r"\w+=\w+; expected \w+, as the first buffer of the communicator",
    "layers that differ",
)
case(
    "buffer-arguments",
    (*OLD, N91),
    [LEGAL],
    [buffer(topk_weights_type=1), buffer(combine_comm_mode=1)],
    "(topk_weights_type|combine_comm_mode)=1; expected 0: 9.1.0 has no such argument",
)

# Experts. torch_api.txt:431,437,457; operator_readme.txt:571,574.
many = {"ep_world_size": 32, "num_topk": 8}
case(
    "created-experts",
    A2_A3,
    [buffer(**many, num_experts=1024)],
    [buffer(**many, num_experts=2080), buffer(num_experts=0)],
    r"num_experts=\d+; expected in \[1, 2048\]",
)
case(
    "created-experts",
    [N91],
    [buffer(ep_world_size=64, num_experts=1024)],
    [buffer(num_experts=1088, ep_world_size=64), buffer(num_experts=0)],
    r"num_experts=\d+; expected in \[1, 1024\]",
)
case(
    "created-experts",
    NINES,
    [buffer(num_experts=2048)],
    [buffer(num_experts=2050), buffer(num_experts=0)],
    r"num_experts=\d+; expected in \[1, 2048\]",
)
case(
    "experts-divide",
    ALL,
    [LEGAL, buffer(num_experts=12)],
    [buffer(num_experts=7), buffer(num_experts=1)],
    r"num_experts=\d; expected a multiple of the 2 ranks",
)
case(
    "experts",
    A2_A3,
    [buffer(**many, num_experts=1024)],
    [buffer(**many, num_experts=1056)],
    r"num_experts=\d+; expected at most 1024 with",
)
case(
    "experts",
    [N91],
    [buffer(ep_world_size=64, num_experts=1024)],
    [buffer(ep_world_size=64, num_experts=1088)],
    r"num_experts=\d+; expected at most 1024 with",
)
case(
    "experts",
    NINES,
    [buffer(num_experts=2048)],
    [buffer(num_experts=2050)],
    r"num_experts=2050; expected at most 2048 with",
)
case(
    "experts-per-rank",
    A2_A3,
    [buffer(num_experts=256)],
    [buffer(num_experts=258)],
    "num_experts=258 over 2 ranks, 129 per rank; expected at most 128 per rank",
)
case(
    "experts-per-rank",
    [N91],
    [buffer(num_experts=32)],
    [buffer(num_experts=34)],
    "num_experts=34 over 2 ranks, 17 per rank; expected at most 16 per rank",
)
case(
    "experts-per-rank",
    NINES,
    [buffer(num_experts=2048)],
    [buffer(num_experts=2050)],
    "num_experts=2050 over 2 ranks, 1025 per rank; expected at most 1024 per rank",
)

# Tokens. torch_api.txt:435,438,454,460; operator_readme.txt:567-568.
full = {n: buffer(num_max_tokens_per_rank=n) | call(rows=n) for n in (1, 512, 513, 4096)}
case(
    "max-tokens",
    A2_A3,
    [full[1], buffer(num_max_tokens_per_rank=4096)],
    each(buffer, "num_max_tokens_per_rank", 0, 4097),
    r"num_max_tokens_per_rank=\d+; expected in \[1, 4096\]",
)
case(
    "max-tokens",
    [N91],
    [full[1], full[512]],
    [full[513], buffer(num_max_tokens_per_rank=0)],
    r"num_max_tokens_per_rank=\d+; expected in \[1, 512\]",
)
case(
    "max-tokens",
    NINES,
    [full[1], buffer(num_max_tokens_per_rank=100_000)],
    each(buffer, "num_max_tokens_per_rank", 0),
    "num_max_tokens_per_rank=0; expected at least 1",
)
case(
    "rows",
    (*A2_A3, *NINES),
    each(call, "rows", 1, 64),
    each(call, "rows", 0, 65),
    r"x: rows=\d+; expected in \[1, 64\]",
)
case("rows", [N91], each(call, "rows", 64), each(call, "rows", 0, 65), r"x: rows=\d+; expected in \[1, 64\]")
case(
    "rows-full",
    [N91],
    [LEGAL, full[1]],
    each(call, "rows", 1, 63),
    r"x: rows=\d+; expected 64, num_max_tokens_per_rank",
)
case(
    "rows-alike",
    A2_A3,
    each(call, "rows_of_ranks", (5, 5), ()),
    each(call, "rows_of_ranks", (5, 4), (4, 5)),
    r"x: rows=\d, \d on ranks 0, 1, ...; expected the same number on all ranks",
    "wrong rows",
)
case(
    "rows-alike",
    [N91],
    each(call, "rows_of_ranks", (64, 64)),
    each(call, "rows_of_ranks", (64, 63)),
    "x: rows=64, 63 on ranks 0, 1, ...; expected the same number on all ranks",
)

# Experts per token. torch_api.txt:440,456; operator_readme.txt:570.
case(
    "created-topk",
    A2_A3,
    each(buffer, "num_topk", 1, 16),
    each(buffer, "num_topk", 0, 17),
    r"num_topk=\d+; expected in \[1, 16\]",
)
case(
    "created-topk",
    [N91],
    each(buffer, "num_topk", 6, 8),
    each(buffer, "num_topk", 0, 17),
    r"num_topk=\d+; expected in \[1, 16\]",
)
case(
    "created-topk",
    NINES,
    each(buffer, "num_topk", 1, 32),
    each(buffer, "num_topk", 0, 33),
    r"num_topk=\d+; expected in \[1, 32\]",
)
case(
    "topk", A2_A3, each(buffer, "num_topk", 1, 16), each(buffer, "num_topk", 17), r"num_topk=17; expected in \[1, 16\]"
)
case(
    "topk",
    [N91],
    each(buffer, "num_topk", 6, 8),
    each(buffer, "num_topk", 5, 7, 9),
    r"num_topk=\d; expected one of 6, 8",
)
case(
    "topk", NINES, each(buffer, "num_topk", 1, 32), each(buffer, "num_topk", 33), r"num_topk=33; expected in \[1, 32\]"
)

# Row width. torch_api.txt:441,455; operator_readme.txt:569.
case(
    "created-hidden",
    A2_A3,
    each(buffer, "hidden", 1024, 1536, 8192),
    each(buffer, "hidden", 512, 1280, 8704),
    r"hidden=\d+; expected in \[1024, 8192\] and a multiple of 512",
)
case(
    "created-hidden",
    [N91],
    each(buffer, "hidden", 4096, 5120, 7168),
    each(buffer, "hidden", 1023, 8193),
    r"hidden=\d+; expected in \[1024, 8192\] with",
)
case(
    "created-hidden",
    NINES,
    each(buffer, "hidden", 1024, 8192),
    each(buffer, "hidden", 960, 8256),
    r"hidden=\d+; expected in \[1024, 8192\] with",
)
case(
    "hidden",
    A2_A3,
    each(buffer, "hidden", 1024, 1536, 8192),
    each(buffer, "hidden", 512, 1280, 8704),
    r"hidden=\d+; expected in \[1024, 8192\] and a multiple of 512",
)
case(
    "hidden",
    [N91],
    each(buffer, "hidden", 4096, 5120, 7168),
    each(buffer, "hidden", 1024, 4608, 6144, 8192),
    r"hidden=\d+; expected one of 4096, 5120, 7168",
)
case(
    "hidden",
    [N92],
    each(buffer, "hidden", 1024, 1088, 8192),
    each(buffer, "hidden", 960, 1056, 8256),
    r"hidden=\d+; expected in \[1024, 8192\] and a multiple of 64",
)
case(
    "hidden",
    [URMA],
    each(buffer, "hidden", 1024, 2048, 8192),
    each(buffer, "hidden", 1088, 1536),
    r"hidden=\d+; expected in \[1024, 8192\] and a multiple of 1024",
)

# Width after the activation. torch_api.txt:442,458,467 (N = 2I there); operator_readme.txt:572.
WIDTH = r"l1_weights: intermediate_hidden=\d+ \(N = \d+\); expected "
wide = "intermediate_hidden"
case(
    "intermediate",
    OLD,
    each(routed, wide, 1024, 2560, 3072),
    each(routed, wide, 512, 1280, 3584),
    WIDTH + r"in \[1024, 3072\] and a multiple of 512",
)
case(
    "intermediate",
    NEW,
    each(routed, wide, 512, 1024, 3072),
    each(routed, wide, 256, 768, 3584),
    WIDTH + r"in \[512, 3072\] and a multiple of 512",
)
case(
    "intermediate",
    [N91],
    each(routed, wide, 512, 1024, 1536, 2048, 3584),
    each(routed, wide, 256, 768, 2560, 3072, 4096),
    WIDTH + "one of 512, 1024, 1536, 2048, 3584",
)
case(
    "intermediate",
    NINES,
    each(routed, wide, 256, 384, 4096),
    each(routed, wide, 128, 320, 4224),
    WIDTH + r"in \[256, 4096\] and a multiple of 128",
)

# Dispatch. torch_api.txt:443-444,461-462; operator_readme.txt:554,576-578.
modes = {
    (mode, out): buffer(dispatch_quant_mode=mode, dispatch_quant_out_dtype=out)
    for mode in (0, 2, 4)
    for out in (None, "BF16", "INT8", E4M3, E5M2, FP4)
}
INT8 = modes[2, "INT8"] | routed(element1="INT8", element2="INT8", format1=NZ, format2=NZ, has_scales=True)
# with twice the capacity, which a3@9.1 wants
INT4 = INT8 | routed(element1="INT4", element2="INT4", has_bias=True) | buffer(max_recv_token_num=512)
TWO_BYTES = modes[4, E5M2] | routed(element1=E5M2, element2=E5M2)
A8W4 = routed(element1=FP4, element2=FP4, format1=C0_32, format2=C0_32)
A4W4 = modes[4, FP4] | routed(element1=FP4, element2=FP4, format1=NZ, format2=C0_32)
GIVEN = modes[0, E4M3] | call(x_dtype=E4M3, has_scales=True)
PAIR = r"\(dispatch_quant_mode, dispatch_quant_out_dtype\)=\(\d, \w+\); expected one of "
case(
    "fp4-dispatch",
    [N91],
    [LEGAL, TWO_BYTES],
    [modes[4, FP4]],
    f"dispatch_quant_out_dtype={FP4}; expected {E5M2} or {E4M3}",
    "quantises to FLOAT8_E5M2",
)
case(
    "dispatch",
    A2_A3,
    [LEGAL, modes[0, "BF16"], INT8, INT4],
    [modes[2, None], modes[4, E4M3], modes[0, E4M3], modes[0, "INT8"]],
    PAIR + r".*\(2, INT8\)",
)
case(
    "dispatch",
    [N91],
    [LEGAL, TWO_BYTES],
    [modes[0, None], modes[2, "INT8"], modes[4, None], modes[0, E4M3]],
    PAIR + r"\(4, FLOAT8_E4M3FN\), \(4, FLOAT8_E5M2\) with",
)
case(
    "dispatch",
    [N92],
    [LEGAL, TWO_BYTES, A4W4, GIVEN],
    [modes[0, None], modes[2, "INT8"], modes[4, None]],
    PAIR + r"\(0, FLOAT4_E2M1\)",
)
case(
    "dispatch",
    [URMA],
    [LEGAL, TWO_BYTES, A4W4],
    [GIVEN, modes[0, None], modes[2, "INT8"]],
    PAIR + r"\(4, FLOAT4_E2M1\)",
)

# Inputs. torch_api.txt:319,321,339,465; operator_readme.txt:556,578,595-597.
case(
    "call-arguments",
    (*OLD, N91),
    [LEGAL],
    [call(has_scales=True), call(activation_params={"alpha": 1.702}), shared(), call(shared_out_dtype=E4M3)],
    r"(scales|activation_params|shared_\w+)=given; expected nothing: 9.1.0 has no such argument",
)
case(
    "x-dtype",
    ALL,
    each(call, "x_dtype", "BF16"),
    each(call, "x_dtype", "FLOAT", "FLOAT16", E4M3),
    r"x.dtype=\w+; expected BF16",
)
case("x-dtype", [N92], [GIVEN], [GIVEN | call(x_dtype="BF16")], f"x.dtype=BF16; expected {E4M3}")
case(
    "x-scales",
    (*NEW, *NINES),
    [LEGAL],
    [call(has_scales=True)],
    "scales=a tensor; expected None, because x is quantised inside",
)
case("x-scales", [N92], [GIVEN], [GIVEN | call(has_scales=False)], "scales=None; expected E8M0 scales of x")
weights_type = "topk_weights_dtype"
case(
    "router-weights",
    A2_A3,
    each(call, weights_type, "FLOAT"),
    each(call, weights_type, "BF16"),
    "topk_weights.dtype=BF16; expected FLOAT with",
    "reads the BF16 memory as float32",
)
case(
    "router-weights",
    A2_A3,
    [LEGAL],
    each(call, weights_type, "FLOAT16"),
    "topk_weights.dtype=FLOAT16; expected FLOAT with",
)
case(
    "router-weights",
    [N91],
    each(call, weights_type, "FLOAT"),
    each(call, weights_type, "BF16", "FLOAT16"),
    r"topk_weights.dtype=\w+; expected FLOAT with",
)
case(
    "router-weights",
    NINES,
    each(call, weights_type, "FLOAT", "BF16"),
    each(call, weights_type, "FLOAT16"),
    "topk_weights.dtype=FLOAT16; expected FLOAT or BF16 with",
)
case("mask", (N91, *NINES), [LEGAL], [call(has_mask=True)], "x_active_mask=a tensor; expected None")

# Weights. torch_api.txt:42-48,322-331,368-371,446-451,467-468; operator_readme.txt:84-87,547-552,592-593,607-609.
TYPES = r"l1_weights=\w+ and \w+ behind rows of \w+; expected the types of one of "
fp8 = routed(element1=E5M2, element2=E5M2, has_scales=True)
case(
    "use-case",
    A2_A3,
    [LEGAL, INT8, INT4],
    [
        fp8,
        routed(element1="INT8", element2="INT8"),
        INT8 | routed(element1="BF16", element2="BF16"),
        INT8 | routed(element2="INT4"),
        routed(element1="FLOAT", element2="FLOAT"),
    ],
    TYPES + "a16w16, a8w4-int, a8w8-int with",
)
case(
    "use-case",
    [N91],
    [LEGAL, TWO_BYTES],
    [fp8, routed(element1="INT8", element2="INT8"), routed(element2=E5M2)],
    TYPES + "a8w8-fp with",
)
case("use-case", [N91], [LEGAL], [A8W4, A4W4], TYPES + "a8w8-fp with", "reads the FP4 bytes as FP8")
case(
    "use-case",
    NINES,
    [LEGAL, TWO_BYTES, A8W4, A4W4],
    [fp8, modes[4, E5M2] | A8W4, modes[4, FP4], routed(element1="BF16", element2="BF16"), routed(element2=FP4)],
    TYPES + "a4w4-fp, a8w4-fp, a8w8-fp with",
)
BOTH = r"l1_weights, l2_weights=\w+ and \w+; expected "
case("format", A2_A3, [LEGAL], [routed(format1=NZ), routed(format2=NZ)], BOTH + "ND and ND with")
case(
    "format",
    A2_A3,
    [INT8, INT4],
    [INT8 | routed(format1=ND), INT4 | routed(format2=ND), INT8 | routed(format1=C0_32)],
    BOTH + "FRACTAL_NZ and FRACTAL_NZ with",
)
case(
    "format",
    A2_A3,
    [INT4 | routed(carrier="INT32")],
    [INT4 | routed(carrier="INT32", format1=ND, format2=ND)],
    BOTH + "FRACTAL_NZ and FRACTAL_NZ with",
    "takes int32 memory for FRACTAL_NZ",
)
case(
    "format",
    [N91],
    [LEGAL, TWO_BYTES],
    [routed(format1=NZ, format2=NZ), TWO_BYTES | routed(format2=NZ)],
    BOTH + "ND and ND with",
)
case(
    "format",
    NINES,
    [LEGAL, routed(format1=NZ, format2=NZ)],
    [routed(format1=NZ), routed(format2=C0_32)],
    BOTH + "ND and ND or FRACTAL_NZ and FRACTAL_NZ with",
    "misreads others",
)
case(
    "format",
    NINES,
    [TWO_BYTES],
    [TWO_BYTES | routed(format1=NZ, format2=NZ)],
    BOTH + "ND and ND with",
    "misreads others",
)
case(
    "format",
    NINES,
    [A8W4],
    [A8W4 | routed(format1=NZ), A8W4 | routed(format1=ND)],
    BOTH + "FRACTAL_NZ_C0_32 and FRACTAL_NZ_C0_32 with",
)
case(
    "format",
    NINES,
    [A8W4],
    [A8W4 | routed(format2=NZ)],
    BOTH + "FRACTAL_NZ_C0_32 and FRACTAL_NZ_C0_32 with",
    "misreads others",
)
case(
    "format",
    NINES,
    [A4W4],
    [A4W4 | routed(format1=ND), A4W4 | routed(format1=C0_32), A4W4 | routed(format2=NZ)],
    BOTH + "FRACTAL_NZ and FRACTAL_NZ_C0_32 with",
    "misreads others",
)
case(
    "layout",
    A2_A3,
    [LEGAL],
    [routed(stacked=True)],
    "l1_weights=one 3-D stack of all experts; expected a list of 2-D tensors",
)
case(
    "layout",
    [N91],
    [LEGAL],
    [routed(stacked=False)],
    "l1_weights=a list of 2-D tensors, one per expert; expected one 3-D stack",
)
case(
    "weight-scales",
    A2_A3,
    [LEGAL, INT8],
    [routed(has_scales=True)],
    "l1_weights_sf, l2_weights_sf=given; expected None for BF16",
)
case(
    "weight-scales",
    A2_A3,
    [INT8, INT4],
    [INT8 | routed(has_scales=False)],
    "l1_weights_sf, l2_weights_sf=None; expected one scale tensor",
)
case(
    "weight-scales",
    (N91, *NINES),
    [LEGAL],
    [routed(has_scales=False)],
    "l1_weights_sf, l2_weights_sf=None; expected one scale tensor",
)
case("bias", A2_A3, [INT4], [INT4 | routed(has_bias=False)], "l1_bias, l2_bias=None; expected the compensation of INT4")
case(
    "bias",
    A2_A3,
    [LEGAL, INT8],
    [routed(has_bias=True), INT8 | routed(has_bias=True)],
    "l1_bias, l2_bias=given; expected None unless the weights are INT4",
)
case(
    "bias",
    (N91, *NINES),
    [LEGAL],
    [routed(has_bias=True)],
    "l1_bias, l2_bias=given; expected None unless the weights are INT4",
    "computes without the bias",
)

# Shared experts. operator_readme.txt:87,574,578,583-584,593-594,604,609.
case(
    "shared-experts",
    NEW,
    [LEGAL],
    [shared(count=1)],
    "shared_l1_weights=1 experts; expected at most 0 with",
    "leaves the shared experts out",
)
case(
    "shared-experts",
    NINES,
    [shared(count=1), shared(count=4)],
    [shared(count=5)],
    "shared_l1_weights=5 experts; expected at most 4 with",
)
four_bits = {"element1": FP4, "element2": FP4, "format1": C0_32, "format2": C0_32}
case(
    "shared-type",
    [URMA],
    [shared()],
    [shared(**four_bits), shared() | call(shared_out_dtype=E5M2)],
    r"shared_l1_weights=\w+ behind rows of \w+; expected FLOAT8_E4M3FN behind rows of FLOAT8_E4M3FN, as",
)
case(
    "shared-type",
    [N92],
    [shared(**four_bits), GIVEN | shared(**four_bits)],
    [GIVEN | shared(element1=E5M2, element2=E5M2) | call(shared_out_dtype=E5M2)],
    "shared_l1_weights=FLOAT8_E5M2 behind rows of FLOAT8_E5M2; expected",
)
case(
    "shared-use-case",
    NINES,
    [shared()],
    [shared(element1="BF16", element2="BF16"), shared(element2=FP4)],
    r"shared_l1_weights=\w+ and \w+ behind rows of FLOAT8_E4M3FN; expected the types",
)
case(
    "shared-layout",
    NINES,
    [shared(), shared(stacked=True) | routed(stacked=True)],
    [shared(stacked=True)],
    "shared_l1_weights=a stack; expected a list, as l1_weights",
)
case(
    "shared-format",
    NINES,
    [shared(format1=NZ, format2=NZ)],
    [shared(format1=NZ)],
    "shared_l1_weights, shared_l2_weights=FRACTAL_NZ and ND; expected ND and ND or",
    "misreads others",
)
case(
    "shared-format",
    [N92],
    [shared(**four_bits)],
    [shared(**four_bits | {"format1": NZ})],
    "shared_l1_weights, shared_l2_weights=FRACTAL_NZ and FRACTAL_NZ_C0_32; expected FRACTAL_NZ_C0_32",
    "misreads others",
)
case(
    "shared-intermediate",
    NINES,
    [shared()],
    [shared(intermediate_hidden=1024)],
    "shared_l1_weights: intermediate_hidden=1024; expected 512, as of the routed experts",
)

# Combine. torch_api.txt:463-464; operator_readme.txt:505-506,560,579-580,588-590.
quant = "combine_quant_mode"
case(
    "combine-quant",
    (*A2_A3, N91),
    each(buffer, quant, 0),
    each(buffer, quant, 3, 4),
    r"combine_quant_mode=\d; expected 0 with",
)
case(
    "combine-quant",
    NINES,
    each(buffer, quant, 0, 3, 4),
    each(buffer, quant, 1, 2),
    r"combine_quant_mode=\d; expected one of 0, 3, 4 with",
)
case("comm-alg", ALL, [LEGAL], [buffer(comm_alg="fullmesh")], r"comm_alg='fullmesh'; expected '' \(reserved\)")
case(
    "topk-weights-type",
    NEW,
    [LEGAL],
    [buffer(topk_weights_type=1)],
    "topk_weights_type=1; expected 0 with",
    "ignores the argument",
)
case(
    "topk-weights-type",
    NINES,
    each(buffer, "topk_weights_type", 0, 1),
    each(buffer, "topk_weights_type", 2),
    "topk_weights_type=2; expected 0 or 1 with",
)
merge = buffer(combine_comm_mode=1)
case("merging", NEW, [LEGAL], [merge], "combine_comm_mode=1; expected 0 with")
case("merging", [N92], [LEGAL, merge], [buffer(combine_comm_mode=2)], "combine_comm_mode=2; expected 0 or 1 with")
case("merging", [URMA], [LEGAL], [merge], "combine_comm_mode=1; expected 0 on URMA with")
case(
    "merging-quantised",
    [N92],
    [merge, merge | GIVEN | buffer(topk_weights_type=1)],
    [merge | buffer(combine_quant_mode=3)],
    "combine_comm_mode=1; expected 0 with combine_quant_mode=3",
)
case(
    "merging-quantised",
    [N92],
    [merge, GIVEN],
    [merge | GIVEN],
    "combine_comm_mode=1; expected 0 for a quantised x, unless topk_weights_type=1",
)
# operator_readme.txt:590: topK = 32 gives 18432, topK <= 9 gives 65536
case(
    "merging-tokens",
    [N92],
    [
        merge | buffer(num_topk=k, num_max_tokens_per_rank=n)
        for k, n in ((32, 18432), (9, 65536), (1, 65536), (10, 58880))
    ],
    [
        merge | buffer(num_topk=k, num_max_tokens_per_rank=n)
        for k, n in ((32, 18433), (9, 65537), (1, 65537), (10, 58881))
    ],
    r"num_max_tokens_per_rank=\d+; expected at most \d+ with combine_comm_mode=1",
)

# Activation. torch_api.txt:340-341; operator_readme.txt:508-509,566,587.
names = {name: call(activation=name) for name in ("swiglu", "swiglustep", "swigluoai", "situglu", "gelu")}
# 950 takes no default of beta (operator_readme.txt:566).
bare_situ = names["situglu"]
names["situglu"] = situ = bare_situ | call(activation_params={"beta": 1.0})
case(
    "activation",
    (*OLD, N91),
    [names["swiglu"]],
    [names["swigluoai"], names["swiglustep"], bare_situ],
    r"activation='\w+'; expected swiglu with",
)
case(
    "activation",
    (*NEW, N92),
    [v for k, v in names.items() if k != "gelu"],
    [names["gelu"]],
    "activation='gelu'; expected one of swiglu, swiglustep, swigluoai, situglu with",
)
case(
    "activation",
    [URMA],
    [names["swiglu"], names["situglu"]],
    [names["swiglustep"], names["swigluoai"]],
    r"activation='\w+'; expected one of swiglu, situglu on URMA with",
)
limit = "activation_clamp"
case(
    "clamp",
    A2_A3,
    each(call, limit, None, 0.0, 7.0, inf),
    each(call, limit, -0.5, nan),
    r"activation_clamp=(-0.5|nan); expected at least 0, and a number",
)
case(
    "clamp",
    [N91],
    each(call, limit, None),
    each(call, limit, 0.0, 7.0, inf),
    r"activation_clamp=[\w.]+; expected None with",
    "computes without the clamp",
)
case(
    "clamp",
    NINES,
    each(call, limit, None, 7.0, inf),
    # the attribute is a float32, in which 1e-50 is 0
    each(call, limit, 0.0, -0.0, 1e-50),
    r"activation_clamp=(-?0.0|1e-50); expected above 0 with",
    "y is all zeros",
)
case(
    "clamp",
    NINES,
    each(call, limit, 0.5),
    each(call, limit, -0.5, nan),
    r"activation_clamp=(-0.5|nan); expected at least 0, and a number",
)
case(
    "clamp-situglu",
    (*NEW, *NINES),
    [situ],
    [situ | call(activation_clamp=7.0)],
    "activation_clamp=7.0; expected None with situglu",
    "drops the clamp",
)
oai = names["swigluoai"]
numbers = [situ | call(activation_params=p) for p in ({"beta": 0.5}, {"beta": 2.0, "linear_beta": 3.0})]
wrong = [situ | call(activation_params=p) for p in ({"beta": 0.0}, {"beta": 1.0, "linear_beta": -1.0}, {"beta": 1e-50})]
above = r"activation_params\['\w+'\]=-?[\d.e-]+; expected above 0 with"
# A2 and A3 have a default of beta: operator_readme.txt:558.
case("activation-params", NEW, [*numbers, bare_situ], wrong, above)
case("activation-params", NINES, numbers, wrong, above)
case(
    "activation-params",
    (*NEW, *NINES),
    [LEGAL],
    [oai | call(activation_params={"alpha": v}) for v in (inf, nan, 1e39)],
    r"activation_params\['alpha'\]=(inf|nan|1e\+39); expected a finite float32",
)


case(
    "activation-params",
    NINES,
    [situ],
    [bare_situ, bare_situ | call(activation_params={"linear_beta": 2.0})],
    r"activation_params=\{.*\} with situglu; expected beta, given explicitly",
)

# Receiving. torch_api.txt:439; operator_readme.txt:575; 64 tokens x 2 ranks x min(topk, experts per rank).
capacity = "max_recv_token_num"
case(
    "receive-bound",
    A2_A3,
    each(buffer, capacity, 0, 5, 300),
    each(buffer, capacity, -1),
    "max_recv_token_num=-1; expected at least 0",
)
case(
    "receive-bound",
    [N91],
    each(buffer, capacity, 0, 768),
    each(buffer, capacity, 769, -1),
    r"max_recv_token_num=-?\d+; expected in \[0, 768\]",
)
case(
    "receive-bound",
    NINES,
    each(buffer, capacity, 0, 256),
    each(buffer, capacity, 257, -1),
    r"max_recv_token_num=-?\d+; expected in \[0, 256\]",
)
case(
    "receive-int4",
    [A3_91],
    [INT4 | buffer(max_recv_token_num=512), INT8],
    [INT4 | buffer(max_recv_token_num=n) for n in (0, 256, 511)],
    r"max_recv_token_num=\d+; expected at least 512: 2 x tokens x ranks",
    "come back as zeros",
)
room = buffer(max_recv_token_num=20)
TOO_MANY = "max_recv_token_num=20; expected at least 21, the rows that rank 1 receives"
case(
    "receive-overflow",
    A2_A3,
    [room | call(received_rows=(3, 20)), call(received_rows=(3, 2000)), room],
    [room | call(received_rows=(3, 21))],
    TOO_MANY,
    "drops the rows beyond it",
)
case(
    "receive-overflow",
    (N91, *NINES),
    [room | call(received_rows=(3, 20)), call(received_rows=(3, 200))],
    [room | call(received_rows=(3, 21))],
    TOO_MANY,
    "a hang",
)

# Window: the worked examples of the size formulas (torch_api.txt:381-423), whole windows, both halves.
big = {"num_experts": 256, "num_topk": 8, "hidden": 7168}
on_a2 = INT8 | buffer(**big, ep_world_size=8, num_max_tokens_per_rank=256) | call(rows=256)
on_a3 = INT8 | buffer(**big, ep_world_size=16, num_max_tokens_per_rank=256) | call(rows=256)
on_950 = buffer(**big, ep_world_size=16, num_max_tokens_per_rank=128) | call(rows=128)


def windows(base: Change, least: int) -> tuple[list[Change], list[Change]]:
    return [base | call(ccl_buffer_size=least)], [base | call(ccl_buffer_size=least - 1)]


WINDOW = r"ccl_buffer_size=\d+; expected at least \d+ bytes"
case("window", (A2_A3[0], A2_A3[2]), *windows(on_a2, 522_535_936), WINDOW)
case("window", (A2_A3[1], A2_A3[3]), *windows(on_a3, 112_492_544), WINDOW)
# The tiling counts the rows of the call. The document counts what the buffer could take (torch_api.txt:381-423), which
# is never less, so in 9.1 it decides; the later document has no formula.
few, roomy = call(rows=1), buffer(num_max_tokens_per_rank=4096)
case("window", [A2_91], *windows(on_a2 | few, 522_535_936), WINDOW)
case("window", [A3_91], *windows(on_a3 | few, 112_492_544), WINDOW)
case("window", [A2_92], *windows(on_a2 | roomy, 522_535_936), WINDOW)
case("window", [A3_92], *windows(on_a3 | roomy, 112_492_544), WINDOW)
case("window", [N91], *windows(on_950, 15_728_640), WINDOW)
case("window", [N92], *windows(on_950, 15_728_640), WINDOW)
# rows across super-nodes are kept once per server, so it takes more than MTE
case("window", [URMA], [on_950 | call(ccl_buffer_size=30 << 20)], [on_950 | call(ccl_buffer_size=15 << 20)], WINDOW)
