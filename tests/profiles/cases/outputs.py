"""Shared experts, the way back and the activation."""

from math import inf, nan

from profiles.cases.case import GIVEN, LEGAL, case, each
from profiles.legal import (
    A2_A3,
    ALL,
    C0_32,
    E5M2,
    FP4,
    N91,
    N92,
    NEW,
    NINES,
    NZ,
    OLD,
    URMA,
    buffer,
    call,
    routed,
    shared,
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
