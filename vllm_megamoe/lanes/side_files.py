"""Config files beside config.json, read the way vLLM reads files of a local folder or a hub repository (vLLM 0.32)."""

from typing import Any

from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from vllm_megamoe.checkpoint.recognise import SIDE_FILES


def read_side_files(model: str, revision: str | None) -> dict[str, dict[str, Any]]:
    """The quantisation descriptions that a checkpoint carries, by file name; absent ones are left out."""
    found = {file: get_hf_file_to_dict(file, model, revision) for file in SIDE_FILES}
    return {file: content for file, content in found.items() if content is not None}
