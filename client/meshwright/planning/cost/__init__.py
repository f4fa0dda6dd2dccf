"""What a training step costs: seconds and bytes of one device, from counts, published figures and fitted constants.

Rule: numpy in, numpy out. Each function takes one number or an array over candidates, so a measured run and a search go
the same way. Knows no JAX, no request and no device: what a step computes (`work`), how it is laid out (`layout`) and
what it runs on (`Machine`, `spans`) come in as plain figures. Constants stand in tables beside the formulas
(`constants.csv`, `gemm.csv`, `reached.csv`, `memory.csv`, `kept.csv`, `intervals.csv`), each with its source or fit.
"""
