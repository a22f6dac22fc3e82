"""Experts per token, and the widths of rows and experts, one number inside and one outside of each limit."""

from profiles.cases.case import case, each
from profiles.legal import (
    A2_A3,
    N91,
    N92,
    NEW,
    NINES,
    OLD,
    URMA,
    buffer,
    routed,
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
