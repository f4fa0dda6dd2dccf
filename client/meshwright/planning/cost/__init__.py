"""The cost of a training step: seconds and bytes of one device, from counts, published figures and fitted constants.

Rule: numpy in, numpy out. Each function takes one number or an array over candidates, so a measured run and a search
use the same code. Independent of JAX, requests and devices: the computation (`work`), the layout (`layout`) and the
hardware (`Machine`, `spans`) are plain figures. Constants are in tables beside the formulas (`constants.csv`,
`gemm.csv`, `reached.csv`, `memory.csv`, `kept.csv`, `intervals.csv`), each with its source or fit.
"""
