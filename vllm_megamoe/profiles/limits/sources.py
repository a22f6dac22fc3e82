"""How the table's cells name code: file of the operator and commit. A number behind a source is a line of it.

9.1.0 is the release branch of that name (2026-07-21), HEAD the newest whole snapshot (2026-08-21). `2026-09` are single
files of later state that carry no commit.
"""

API = "torch_api.txt"
README = "operator_readme.txt"
CSRC_91 = "csrc mega_moe.cpp 9.1.0 06be6c2ca"
CSRC_92 = "csrc mega_moe.cpp HEAD 577814407"
ARCH22_91 = "arch22 tiling 9.1.0 06be6c2ca"
ARCH22_92 = "arch22 tiling HEAD 577814407"
ARCH35_91 = "arch35 tiling 9.1.0 06be6c2ca"
ARCH35_92 = "arch35 tiling HEAD 577814407"
ARCH35_NEWEST = "arch35 tiling 2026-09"
KERNEL22 = "op kernel arch22, unpermute (all variants, 9.1.0 and HEAD)"
KERNEL35_91 = "op kernel arch35 9.1.0 06be6c2ca"
WRAPPER_91 = "op wrapper mega_moe.py 9.1.0 06be6c2ca"
WRAPPER_92 = "op wrapper mega_moe.py HEAD 577814407"
DOCUMENT_92 = "docs/zh/mega_moe.md HEAD 577814407"
CONTEXT = "op wrapper comm_context.cpp (9.1.0, HEAD and 2026-09)"
