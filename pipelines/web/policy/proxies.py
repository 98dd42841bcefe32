"""Proxies that the environment names, none of which images are fetched through.

A proxy looks names up itself, and the addresses that it connects to cannot be checked.
"""

from urllib.request import getproxies_environment

_OF_THE_WEB = {"http", "https", "all"}  # not `no`, nor gRPC's `no_grpc`, which an engine's client sets


def unused() -> str:
    """One line on the variables that name proxies, without what they hold; empty if there are none."""
    named = sorted(f"{scheme.upper()}_PROXY" for scheme in getproxies_environment().keys() & _OF_THE_WEB)
    if not named:
        return ""
    are = "is set, and is" if len(named) == 1 else "are set, and are"
    return f"{', '.join(named)} {are} not used for images: behind a proxy no address could be checked"
