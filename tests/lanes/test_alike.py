"""What ranks compare when they meet: a difference is named with its ranks, and a checkpoint is known by its bytes."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from vllm_megamoe.lanes.alike import differences, weights_hash


def test_equal_ranks_differ_in_nothing() -> None:
    facts = {"package torch": "2.13.0", "option use_case": "auto"}
    assert differences([("a", facts), ("b", dict(facts))]) == []


def test_a_difference_names_its_ranks_and_hosts() -> None:
    said = [
        ("a", {"package torch": "2.13.0", "HCCL_BUFFSIZE": "200"}),
        ("a", {"package torch": "2.13.0", "HCCL_BUFFSIZE": "300"}),
        ("b", {"package torch": "2.12.0", "HCCL_BUFFSIZE": "200", "package torch_npu": "2.12"}),
    ]
    assert differences(said) == [
        "package torch: 2.13.0 on rank 0 (a), 1 (a); 2.12.0 on rank 2 (b)",
        "HCCL_BUFFSIZE: 200 on rank 0 (a), 2 (b); 300 on rank 1 (a)",
        "package torch_npu: absent on rank 0 (a), 1 (a); 2.12 on rank 2 (b)",
    ]


def written(folder: Path, tensor: torch.Tensor, name: str = "w") -> str:
    folder.mkdir()
    save_file({name: tensor, "other": torch.zeros(3)}, folder / "model.safetensors")
    return weights_hash(folder)


def test_checkpoints_differ_in_numbers_names_and_types(tmp_path: Path) -> None:
    weights = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    tuned = weights + 0.001
    hashes = [
        written(tmp_path / "a", weights),
        written(tmp_path / "tuned", tuned),
        written(tmp_path / "renamed", weights, "v"),
        written(tmp_path / "half", weights.half()),
    ]
    assert len(set(hashes)) == 4
    assert written(tmp_path / "copy", weights) == hashes[0]
