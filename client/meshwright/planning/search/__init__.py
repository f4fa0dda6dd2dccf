"""From a model to meshes: all layouts that divide it, priced at once, the best told with what they cost.

Rule: `space` lists, `hardware` says what it runs on, `pricing` prices, `ranking` chooses and says why others lost,
`answer` and `request` make plans of it; `batch` says how many sequences a step should have, `audit` which mesh is
better than a given one, `remaining` what goes on when a device fails. Pure: a model, a topology and bounds in, figures
out; which device stands where is `planning.mesh_plan`'s.
"""
