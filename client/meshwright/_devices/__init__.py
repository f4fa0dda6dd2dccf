"""Private packages of `meshwright.devices`: capabilities, JAX's start environment, distribution of data, missing GPUs.

Rule: nothing here starts JAX's backend except `JAXDeviceManager` and its callers.
"""
