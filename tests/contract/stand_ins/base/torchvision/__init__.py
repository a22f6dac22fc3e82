"""Stands for torchvision, whose builds do not fit torch +cpu: transformers imports it for image processors.

vllm-ascend's worker patches import multimodal models of vLLM and those import transformers' processors. No image is
processed here.
"""

import sys
from types import ModuleType

from asked import answering

__version__ = "0.0+stand-in"
__getattr__ = answering("torchvision")


def _child(name: str) -> ModuleType:
    module = ModuleType(f"torchvision.{name}")
    module.__path__ = []
    module.__getattr__ = answering(module.__name__)  # type: ignore[method-assign]
    sys.modules[module.__name__] = module
    return module


class _InterpolationMode:
    """Names that transformers maps PIL's filters to."""

    NEAREST, NEAREST_EXACT, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS = range(7)


transforms = _child("transforms")
transforms.InterpolationMode = _InterpolationMode  # type: ignore[attr-defined]
transforms.functional = _child("transforms.functional")  # type: ignore[attr-defined]
transforms.v2 = _child("transforms.v2")  # type: ignore[attr-defined]
transforms.v2.functional = _child("transforms.v2.functional")  # type: ignore[attr-defined]
for _functional in (transforms.functional, transforms.v2.functional):
    _functional.InterpolationMode = _InterpolationMode
io = _child("io")
