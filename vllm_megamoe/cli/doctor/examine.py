"""All checks, in the order of the report."""

from collections.abc import Callable, Iterator

from vllm_megamoe.cli.doctor import ascend, packages, variables
from vllm_megamoe.cli.doctor.check import Check, Report
from vllm_megamoe.cli.doctor.environment import Environment
from vllm_megamoe.cli.doctor.processor import processor

CHECKS: tuple[Callable[[Environment], Iterator[Check]], ...] = (
    packages.python,
    packages.torch,
    packages.vllm,
    packages.stub,
    packages.foreign_builds,
    packages.plugin,
    ascend.stack,
    ascend.cann,
    ascend.one_build,
    processor,
    variables.plugins,
    variables.hccl,
    variables.ours,
)


def examine(env: Environment) -> Report:
    """Run every check on the environment."""
    found = tuple(check for each in CHECKS for check in each(env))
    return Report(
        ok=not any(check.hinders for check in found),
        lane="ascend" if env.is_ascend else "cpu",
        checks=found,
    )
