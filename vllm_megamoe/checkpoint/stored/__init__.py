"""How each format stores one projection [N, K], and what numbers its tensors mean.

A format lists its tensors (`Part`: name behind the projection, dtypes, shape) and turns them into a `Matrix`. That is
all that serving, the command line and the dequantising linears need of it: exact kinds keep codes and scales as they
are, so that a conversion copies them; `RealMatrix` holds the values of a format whose scales the operator has no place
for. Nothing here knows vLLM or the operator's layouts.
"""
