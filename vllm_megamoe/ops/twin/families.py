"""The arithmetic that a call's experts need."""

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.ops.twin.call import Call, Experts
from vllm_megamoe.ops.twin.dense import Dense
from vllm_megamoe.ops.twin.family import Family
from vllm_megamoe.ops.twin.int4 import int4_product
from vllm_megamoe.ops.twin.int8 import int8_product
from vllm_megamoe.ops.twin.ints import Ints
from vllm_megamoe.ops.twin.mx import Mx
from vllm_megamoe.ops.twin.plain_copy import with_plain


def family_of(call: Call, experts: Experts) -> Family:
    """Arithmetic of routed or shared experts."""
    l1, l2, numerics = experts.l1, experts.l2, call.config.numerics
    if call.config.plain_copy:
        l1, l2 = with_plain(l1, numerics.int4_nibbles), with_plain(l2, numerics.int4_nibbles)
    if experts.rows is not None:
        return Mx(l1, l2, call.activation, call.hidden, experts.rows, numerics)
    if l1.element is AclDtype.INT8:
        return Ints(l1, l2, int8_product, call.activation, call.hidden, numerics)
    if l1.element is AclDtype.INT4:
        return Ints(l1, l2, int4_product, call.activation, call.hidden, numerics)
    return Dense(l1, l2, call.activation, call.raw.x.dtype, numerics.rule == "spec")
