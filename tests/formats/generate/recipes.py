"""Every generated kind of checkpoint, by name."""

from formats.generate.recipes_compressed_tensors import COMPRESSED_TENSORS
from formats.generate.recipes_msmodelslim import MSMODELSLIM
from formats.generate.recipes_others import OTHERS
from formats.generate.recipes_vendors import FLOATS, FP8

RECIPES = {recipe.name: recipe for recipe in (*MSMODELSLIM, *FP8, *COMPRESSED_TENSORS, *OTHERS, *FLOATS)}
"""Every recipe by its name."""
