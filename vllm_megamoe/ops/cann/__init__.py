"""The operator of an NPU: an adapter to the CANN package, and the rules that are looked at before it is called."""
