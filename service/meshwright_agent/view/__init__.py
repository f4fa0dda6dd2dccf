"""The view: facts of the probe and of JAX joined into the picture that `/devices` and plans show. Pure."""

from meshwright_agent.view.sight import JaxSight
from meshwright_agent.view.topology import build_devices

__all__ = ["JaxSight", "build_devices"]
