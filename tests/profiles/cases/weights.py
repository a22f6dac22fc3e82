"""What rows are quantised to, what comes with them, and how weights lie."""

from profiles.cases.case import A4W4, A8W4, GIVEN, INT4, INT8, LEGAL, TWO_BYTES, case, each, modes
from profiles.legal import (
    A2_A3,
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
    call,
    routed,
    shared,
)

# Dispatch. torch_api.txt:443-444,461-462; operator_readme.txt:554,576-578.
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
