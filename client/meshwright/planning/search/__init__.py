"""Searches meshes for a model: prices all layouts that divide it, and returns the best with their cost.

Rule: `candidates` lists and prices layouts, `search` ranks them and builds plans. `batch` recommends a batch, `audit`
compares a given mesh with the best, `remaining` plans for failed devices, `measured` and `replaced` use bench results.
Pure: a model, a topology and bounds in, figures out. `planning.mesh_plan` places the devices.
"""
