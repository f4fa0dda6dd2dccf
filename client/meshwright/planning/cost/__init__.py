"""The cost of a training step: seconds and bytes of one device, from counts, published figures and fitted constants.

Rule: numpy in, numpy out. Each function takes one number or an array over candidates, so a measured run and a search
use the same code. Independent of JAX, requests and devices: the computation (`work`), the layout and its
links (`spans`) are plain figures. Constants have their source or fit beside them: of the law in `step_time`, of
collectives in `reached.csv`, of memory in `memory.csv` and `kept.csv`.
"""
