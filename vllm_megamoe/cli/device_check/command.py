"""What `vllm-megamoe check --backend cann` does: find the product, start two ranks, write the report."""

from pathlib import Path

from vllm_megamoe import cli
from vllm_megamoe.cli.device_check.examine import examine
from vllm_megamoe.cli.device_check.layer import RANKS
from vllm_megamoe.cli.device_check.report import DeviceReport, show
from vllm_megamoe.cli.doctor.environment import read_environment
from vllm_megamoe.cli.doctor_command import examine as doctor
from vllm_megamoe.cli.show.rows import print_whole
from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops.cann.installed import installed, installed_product, installed_revision, npu_is_present
from vllm_megamoe.profiles.profile import REVISIONS, find_profile
from vllm_megamoe.testing.ranks import World

REPORT = Path("megamoe-device-report.json")


def run(report: Path = REPORT, *, json: bool = False) -> int:
    """Ask this machine's device and compare it with the twin; writes one file.

    Args:
        report: the file.
        json: print the report as JSON in place of the table.

    Returns:
        The command's exit code: 0 all is as expected; 1 an answer or a use case is not.

    Raises:
        ConfigError: no NPU, fewer than two, or no operator package.
    """
    profile = profile_of_machine()
    operator = installed()
    backend = "gloo" if simulated_profile() else "hccl"
    ranks = World(RANKS, backend=backend)
    try:
        answers, agreements = examine(ranks, profile)
    finally:
        ranks.stop()
    made = DeviceReport(
        holds=all(answer.is_expected for answer in answers) and all(each.agrees for each in agreements),
        profile=profile,
        about_profile=REVISIONS,
        simulated=bool(simulated_profile()),
        operator={"create": tuple(sorted(operator.create_names)), "call": tuple(sorted(operator.run_names))},
        answers=tuple(answers),
        agreements=tuple(agreements),
        machine=doctor(read_environment()),
    )
    text = made.model_dump_json(indent=2)
    report.write_text(text + "\n", encoding="utf-8")
    print_whole(text) if json else show(made)
    if not json:
        print_whole(f"Report: {report.absolute()}")
    return cli.OK if made.holds else cli.REJECTED


def profile_of_machine() -> str:
    """Product and revision of this machine, the simulated one where VLLM_MEGAMOE_SIMULATE names one.

    Raises:
        ConfigError: no NPU, fewer than two, or no operator package that a profile describes.
    """
    simulated = simulated_profile()
    if simulated:
        return simulated
    try:
        present = npu_is_present()
    except ImportError as error:
        raise ConfigError(
            f"check --backend cann: torch_npu cannot be imported ({error}); expected a host with two NPUs. Run "
            "`vllm-megamoe doctor` for what is missing, or set VLLM_MEGAMOE_SIMULATE=a3@9.1 to try it without a device."
        ) from error
    if not present:
        raise ConfigError("check --backend cann: torch_npu finds no NPU; expected two. Look at `npu-smi info`.")
    return find_profile(f"{installed_product()}@{installed_revision()}").name
