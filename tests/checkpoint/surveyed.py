"""A generated or given checkpoint, surveyed as the command line does it."""

from pathlib import Path

from vllm_megamoe.checkpoint.survey import Survey
from vllm_megamoe.cli.model import read_facts, read_files
from vllm_megamoe.plan.folder import survey_folder
from vllm_megamoe.plan.model import Speculation


def survey_of(folder: Path) -> Survey:
    """The survey, draft layers included."""
    files = read_files(str(folder))
    facts = read_facts(files, Speculation("mtp")).facts
    assert facts.layers, folder
    return survey_folder(folder, files.config, files.side_files, facts.layers, facts.num_layers)


def problems_of(folder: Path) -> list[str]:
    """What it says."""
    return [str(problem) for problem in survey_of(folder).problems]
