"""A verifier of signed requests, written from RFC 9421 (section 3.2) and draft-ietf-webbotauth-httpsig-protocol-00.

It knows no more than these tests need: dictionaries of one member, components without parameters or with `key`.
"""

import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

INPUT = re.compile(r"(?P<label>[a-z0-9-]+)=(?P<params>\((?P<components>[^)]*)\)(?P<rest>.*))")
COMPONENT = re.compile(r'"(?P<name>[^"]+)"(?:;key="(?P<key>[^"]+)")?')
PARAMETER = re.compile(r';(?P<name>[a-z]+)=(?:"(?P<text>[^"]*)"|(?P<number>\d+))')


def parameters(signature_input: str) -> dict[str, str | int]:
    """The parameters of a Signature-Input."""
    rest = INPUT.fullmatch(signature_input)["rest"]
    found = PARAMETER.finditer(rest)
    return {each["name"]: int(each["number"]) if each["number"] else each["text"] for each in found}


def base(signature_input: str, method: str, authority: str, target: str, headers: Mapping[str, str]) -> str:
    """The signature base (section 2.5) of a request; names of headers are in lower case."""
    match = INPUT.fullmatch(signature_input)
    path = target.partition("?")[0]
    derived = {"@method": method, "@authority": authority, "@path": path}
    lines = []
    for component in COMPONENT.finditer(match["components"]):
        name, key = component["name"], component["key"]
        value = derived.get(name) or headers[name]
        if key is not None:  # of a dictionary (section 2.1.2)
            member, _, value = value.partition("=")
            assert member == key
        lines.append(f"{component[0]}: {value}")
    assert len(set(lines)) == len(lines)
    return "\n".join([*lines, f'"@signature-params": {match["params"]}'])


def verify(key: Mapping[str, Any], method: str, authority: str, target: str, headers: Mapping[str, str]) -> None:
    """Raises where the signature of a request is not that of a key, given as a JWK."""
    signature_input, signature = headers["signature-input"], headers["signature"]
    label, _, value = signature.partition("=")
    assert label == INPUT.fullmatch(signature_input)["label"]
    assert value.startswith(":")
    assert value.endswith(":")
    public = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key["x"] + "="))
    public.verify(b64decode(value[1:-1]), base(signature_input, method, authority, target, headers).encode())
