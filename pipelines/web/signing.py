"""Signatures by which a site can tell our requests from those of others who use our name (Web Bot Auth).

By draft-ietf-webbotauth-httpsig-protocol-00, sections 5.2 and 5.5: HTTP message signatures (RFC 9421) by Ed25519, each
over the method, host and path of one request. Sites find the public key in a directory at the address that each
request names.
"""

import hashlib
import json
import time
from base64 import b64encode, urlsafe_b64encode
from typing import TYPE_CHECKING

from altalign import storage
from altalign.errors import UsageError, first_line
from altalign.pipelines.web.calls import Target

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LASTS_S = 300  # enough for clocks that differ; the draft has a day at most
LABEL = "sig1"


class Signer:
    """Signs requests with one key."""

    def __init__(self, key_file: str, agent: str):
        """Reads the key (`fetch.signing_key`); a UsageError where it is none. `agent` has the directory."""
        self._key, self._agent = read_key(key_file), agent
        self._id = public_key(self._key)["kid"]

    def headers(self, target: Target) -> dict[str, str]:
        """The headers that sign a GET of a target from now on.

        The libraries for this take a URL of RFC 3986, and refuse what WHATWG's parser leaves in a path, such as `[`.
        """
        _, _, authority = target.origin.partition("//")
        components = {
            '"@authority"': authority,
            '"@method"': "GET",
            '"@path"': target.url.removeprefix(target.origin).partition("?")[0],
            f'"signature-agent";key="{LABEL}"': f'"{self._agent}"',
        }
        now = int(time.time())
        times = f"created={now};expires={now + LASTS_S}"
        parameters = f'({" ".join(components)});{times};keyid="{self._id}";alg="ed25519";tag="web-bot-auth"'
        lines = [f"{name}: {value}" for name, value in {**components, '"@signature-params"': parameters}.items()]
        signature = b64encode(self._key.sign("\n".join(lines).encode())).decode()
        return {
            "Signature-Agent": f'{LABEL}="{self._agent}"',
            "Signature-Input": f"{LABEL}={parameters}",
            "Signature": f"{LABEL}=:{signature}:",
        }


def read_key(path: str) -> "Ed25519PrivateKey":
    """The private key in a PEM file; a UsageError where there is none of Ed25519 without a password."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    where, make = f"[fetch] signing_key: {path}", "`openssl genpkey -algorithm ed25519 -out key.pem` makes one"
    try:
        key = load_pem_private_key(storage.read_bytes(path), password=None)
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror or first_line(error)}); {make}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{where}: no PEM file of an Ed25519 private key without a password; {make}")
    return key


def public_key(key: "Ed25519PrivateKey") -> dict[str, str]:
    """The public key as a directory has it: a JWK (RFC 8037), whose `kid` is its thumbprint (RFC 7638)."""
    thumbed = {"crv": "Ed25519", "kty": "OKP", "x": _base64(key.public_key().public_bytes_raw())}
    text = json.dumps(thumbed, sort_keys=True, separators=(",", ":"))
    return {**thumbed, "kid": _base64(hashlib.sha256(text.encode()).digest()), "use": "sig"}


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
