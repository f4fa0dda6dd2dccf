"""Private rooms of `meshwright.devices`: what is here, what JAX starts with, how data is dealt out, why no GPU.

Rule: nothing here starts JAX's backend except `JAXDeviceManager` and what asks it.
"""
