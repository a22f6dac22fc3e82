"""What the user asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of `plan` beside the model.

    Attributes:
        options: megamoe options that were given, by the names of `--additional-config`.
        tensor_parallel, data_parallel: sizes, None where not given.
        max_num_batched_tokens: rows of a step; None for vLLM's own default of a server.
        dtype: `auto` for the config's.
        draft: whether to plan the draft (MTP) layers of the checkpoint too; a line with speculation does it by itself.
        line: a `vllm serve` line to read, None for none.
    """

    options: Mapping[str, Any]
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str = "auto"
    draft: bool = False
    line: str | None = None
