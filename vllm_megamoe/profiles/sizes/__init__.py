"""Sizes of the operator on each product, as plain formulas: window, workspace, wire, weights."""
