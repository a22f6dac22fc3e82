"""GPTQ and AWQ, and AutoRound's two packings of them: integers with zero points in words of 32 bits, input-major.

Source: facts/checkpoints.md 3.12 (checked there against vLLM's packers), fixtures/README.md.

* GPTQ: `qweight` I32 [K/8, N] (8 bits: [K/4, N]), the lowest bits first along K; `scales` F16 [G, N]; `qzeros` I32
  [G, N/8], the lowest bits first along N, holding the zero point MINUS ONE; `g_idx` I32 [K], the group of each k, which
  a file quantised in activation order shuffles. w[n, k] = (u - (stored + 1)) * scales[g, n].
  `checkpoint_format: gptq_v2` stores the zero point itself.
* AWQ: `qweight` I32 [K, N/8], nibble i of a word holds column (0,2,4,6,1,3,5,7)[i]; `qzeros` I32 [G, N/8] in the same
  order, the zero point itself; `scales` F16 [G, N].
One group over all of K is a tensor per channel: codes of int4 where the zero point is 8 throughout, else of int8, for
u - z lies in -15..15.
"""

import numpy as np
from formats.readings.experts import Codes, Projection
from formats.readings.nibbles import awq_words, gptq_zero_points, words_along_rows
from formats.readings.numbers import F64, Ints
from formats.readings.store import Store


def gptq(store: Store, prefix: str) -> Projection:
    """4 bits."""
    return _gptq(store, prefix, bits=4)


def gptq_int8(store: Store, prefix: str) -> Projection:
    """8 bits."""
    return _gptq(store, prefix, bits=8)


def awq(store: Store, prefix: str) -> Projection:
    """4 bits, AWQ's order."""
    unsigned = awq_words(store.bits(prefix + "qweight", "I32"))
    zero = awq_words(store.bits(prefix + "qzeros", "I32"))
    scale = store.numbers(prefix + "scales", "F16", "BF16", "F32")
    k = len(unsigned)
    return _combine(unsigned, zero, scale, np.arange(k) // (k // len(scale)), bits=4)


def _gptq(store: Store, prefix: str, bits: int) -> Projection:
    unsigned = words_along_rows(store.bits(prefix + "qweight", "I32"), bits)
    section = store.config["quantization_config"]
    plain = section.get("checkpoint_format") == "gptq_v2"
    zero = gptq_zero_points(store.bits(prefix + "qzeros", "I32"), bits) + (0 if plain else 1)
    scale = store.numbers(prefix + "scales", "F16", "BF16", "F32")
    k = len(unsigned)
    group = np.arange(k) // (k // len(scale))
    if prefix + "g_idx" in store:
        group = store.ints(prefix + "g_idx", "I32")
    return _combine(unsigned, zero, scale, group, bits)


def _combine(unsigned: Ints, zero: Ints, scale: F64, group: Ints, bits: int) -> Projection:
    """unsigned [K, N], zero and scale [G, N], group [K] -> [N, K]."""
    difference = (unsigned - zero[group]).T
    if len(scale) == 1:
        symmetric = bool(np.all(zero == 1 << (bits - 1)))
        assert bits == 4 or symmetric
        return Projection.of(Codes("int4" if bits == 4 and symmetric else "int8", difference, scale[0]))
    return Projection(difference * scale[group].T)
