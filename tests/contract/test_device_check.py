"""`vllm-megamoe check --backend cann` as on a host: torch_npu, hccl and the operator package are found by import."""

import subprocess
import sys
from pathlib import Path

import pytest
from contract.support.launch import RECORD, environment

from vllm_megamoe.cli.device_check.report import DeviceReport

COMMAND = [sys.executable, "-m", "vllm_megamoe.cli"]
ANSWERS = {"a2@9.1": 9, "a3@9.2": 9, "950@9.2": 4}


@pytest.mark.parametrize("npu", ANSWERS)
def test_two_ranks_of_hccl_settle_everything(npu: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "check", "--backend", "cann", "--report", "report.json"],
        cwd=tmp_path,
        env=environment(npu) | {"CONTRACT_FOLDER": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = DeviceReport.model_validate_json((tmp_path / "report.json").read_text())
    assert (report.holds, report.profile, report.simulated) == (True, npu, False)
    assert len(report.answers) == ANSWERS[npu]
    assert all(each.equal for each in report.agreements)
    assert report.machine.lane == "ascend"
    calls = sum(len(path.read_text().splitlines()) for path in tmp_path.glob("calls.*"))
    RECORD.notes.append(f"device check over hccl, {npu}: {calls} calls of the package's functions on two ranks")
    assert calls > 2 * len(report.answers)
