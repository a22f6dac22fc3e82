"""A check of a host for one model: whether its plan holds here, and the window that HCCL must give it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_megamoe.cli.doctor.ascend import PRODUCTS, revision_of
from vllm_megamoe.cli.doctor.environment import Check, Environment
from vllm_megamoe.environment import BUFFSIZE, BUFFSIZE_VARIABLE, DEFAULT_MB

if TYPE_CHECKING:
    from vllm_megamoe.cli.report.schema import PlanReport


@dataclass(frozen=True, slots=True)
class Served:
    """A model as it is to be served here.

    Attributes:
        model: folder of a checkpoint, or its config.json.
        tensor_parallel, data_parallel, max_num_batched_tokens: as of `vllm serve`; None as `plan` chooses them.
    """

    model: str
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    max_num_batched_tokens: int | None = None


def window(env: Environment, served: Served) -> Iterator[Check]:
    """The plan, and HCCL_BUFFSIZE as needed and as present.

    Raises:
        ConfigError: the model's config cannot be read.
    """
    report = _plan(env, served)
    if not report.holds:
        remedy = f"vllm-megamoe plan {served.model} --profile {report.profile}"
        yield Check(name="plan", state="wrong", found=report.summary, remedy=remedy)
        return
    yield Check(name="plan", state="ok", found=report.summary)
    needed = report.hccl_buffsize_mb
    if needed is None:
        if report.profile != "none":
            yield Check(name="window", state="ok", found="the operator allocates its own, whatever HCCL_BUFFSIZE says")
        return
    value = env.variables.get(BUFFSIZE_VARIABLE, "")
    if value and BUFFSIZE.wrong(value):
        return  # the variable's own check speaks
    present = int(value) if value else DEFAULT_MB
    text = f"needed {needed} MB of a half, present {present} MB" + ("" if value else " (HCCL's default)")
    remedy = "" if present >= needed else f"export {BUFFSIZE_VARIABLE}={max(needed, DEFAULT_MB)}"
    yield Check(name="window", state="wrong" if remedy else "ok", found=text, remedy=remedy)


def _plan(env: Environment, served: Served) -> "PlanReport":
    # Loaded here: all else that doctor looks at needs none of it.
    from vllm_megamoe.cli.model import read_files
    from vllm_megamoe.cli.report.make import make_report
    from vllm_megamoe.cli.request import Request

    product, wrapper = PRODUCTS.get(env.host.built_for), env.host.wrapper
    options = {} if product is None or wrapper is None else {"profile": f"{product}@{revision_of(wrapper)}"}
    sizes = served.tensor_parallel, served.data_parallel, served.max_num_batched_tokens
    report, _, _ = make_report(read_files(served.model), Request(options, *sizes))
    return report
