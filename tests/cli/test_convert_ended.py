"""A conversion that ended in the middle: nothing half under a final name, and the same command goes on."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.command import run
from cli.conversions import converted, files_of

from vllm_megamoe.cli.checkpoint import convert_layer
from vllm_megamoe.cli.checkpoint.journal import JOURNAL

ROOT = Path(__file__).parents[2]


def test_an_ended_run_goes_on(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, arguments = tmp_path / "own", ("--use-case", "a8w8-int")
    write, calls = convert_layer.write_file, []

    def interrupted(place: Path, *rest: Any) -> None:
        calls.append(place.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(place, *rest)

    monkeypatch.setattr(convert_layer, "write_file", interrupted)
    ended = run("convert", str(source), str(own), *arguments)
    assert ended.exit_code == 130
    assert f"interrupted; {own} has 1 of 2 files of experts, the same command goes on from there" in ended.output
    assert set(files_of(own)) == {"megamoe-experts-00000.safetensors", JOURNAL}
    assert run("show", str(own)).exit_code == 2
    layers = converted(source, own, *arguments)["layers"]
    assert [layer["resumed"] for layer in layers] == [True, False]
    assert calls.count("megamoe-experts-00000.safetensors") == 1
    fresh = tmp_path / "fresh"
    again = converted(source, fresh, *arguments)["layers"]
    assert files_of(own) == files_of(fresh)
    assert [a["weight_rel_err"] for a in layers] == [b["weight_rel_err"] for b in again]


KILLED = """
import os, sys
from vllm_megamoe.cli.checkpoint import convert_layer
made = convert_layer.in_order
def dies(*arguments):
    for number, expert in enumerate(made(*arguments)):
        if number == 2:
            os._exit(9)
        yield expert
convert_layer.in_order = dies
from vllm_megamoe.cli.app import main
sys.argv = ["vllm-megamoe", "convert", *sys.argv[1:], "--use-case", "a8w4-fp"]
main()
"""


def test_a_killed_run_leaves_no_half_file_under_its_name(tmp_path: Path, source: Path) -> None:
    own = tmp_path / "own"
    done = subprocess.run([sys.executable, "-c", KILLED, str(source), str(own)], cwd=ROOT, check=False)
    assert done.returncode == 9
    assert set(files_of(own)) == {".megamoe-experts-00000.safetensors.part", JOURNAL}
    converted(source, own, "--use-case", "a8w4-fp")
    fresh = tmp_path / "fresh"
    converted(source, fresh, "--use-case", "a8w4-fp")
    assert files_of(own) == files_of(fresh)


def test_what_is_read_again_must_be_what_was_written(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_megamoe.checkpoint.writing.checksum_of", lambda file: -1)
    found = run("convert", str(source), str(tmp_path / "own"), "--use-case", "a8w8-int")
    assert found.exit_code == 2
    assert "not what was written" in found.output
    assert files_of(tmp_path / "own") == {}


def test_another_conversions_folder_is_not_gone_on_with(tmp_path: Path, source: Path) -> None:
    own = tmp_path / "own"
    subprocess.run([sys.executable, "-c", KILLED, str(source), str(own)], cwd=ROOT, check=False)
    found = run("convert", str(source), str(own), "--use-case", "a8w8-int")
    assert found.exit_code == 2
    assert "other options" in found.output
