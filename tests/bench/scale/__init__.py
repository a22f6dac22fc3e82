"""How the operator's sizes grow with the ranks, by computation; `python -m bench.scale` writes docs/scale.md.

sizes       memory, wire and rows of one layer at an EP size, from the package's size functions; where a product stops
routers     how unevenly routers of a stated skew load the ranks
page        tables, plots and text
"""
