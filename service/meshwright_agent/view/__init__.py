"""The view: facts of the probe and of JAX joined into the picture that `/devices` and plans show. Pure."""

from meshwright_agent.view.devices import build_devices
from meshwright_agent.view.sight import JaxSight

__all__ = ["JaxSight", "build_devices"]
