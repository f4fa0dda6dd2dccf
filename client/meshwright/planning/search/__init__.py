"""Searches meshes for a model: prices all layouts that divide it, and returns the best with their cost.

Rule: `candidates` lists and prices layouts; `search` ranks them, builds plans, and compares a given mesh with the best.
`batch` recommends a batch, `remaining` plans for failed devices, `measured` uses bench results.
Pure: a model, a topology and bounds in, figures out. `planning.mesh_plan` places the devices.
"""
