"""`cann_ops_transformer.ops` as its Python wrapper looks to a caller, one module for each API revision."""
