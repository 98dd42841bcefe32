#!/usr/bin/env bash
# http-message-signatures 3.0.0 (RFC 9421) refuses to sign a request for a URL that has `[`, `]` or `|` in its path or
# query as they are, with "expected an encoded absolute URL". Such URLs are common in pages (`photo[1].jpg`, `?f=a|b`),
# the URL Standard of WHATWG leaves these characters as they are, and so do browsers, servers and aiohttp: the request
# goes out and is answered. A crawler that signs what it fetches cannot sign these, and may not escape them either, for
# servers tell `[` and `%5B` apart.
# Expected: a signature for each. Exits with 1 if any of these answers changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip --disable-pip-version-check --quiet install http-message-signatures==3.0.0 ada-url==4.0.0
cat > sign.py <<'P'
from types import SimpleNamespace

import ada_url
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageSigner, HTTPSignatureKeyResolver, algorithms
from http_message_signatures.exceptions import HTTPMessageSignaturesException


class OneKey(HTTPSignatureKeyResolver):
    key = Ed25519PrivateKey.generate()

    def resolve_private_key(self, key_id):
        return self.key

    def resolve_public_key(self, key_id):
        return self.key.public_key()


signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=OneKey())
for url in ("photo.jpg", "photo[1].jpg", "photo%5B1%5D.jpg", "photo.jpg?f=a|b"):
    url = ada_url.URL(f"https://images.example/{url}").href  # as browsers spell it
    request = SimpleNamespace(method="GET", url=url, headers={})
    try:
        signer.sign(request, key_id="ours", covered_component_ids=("@authority", "@target-uri"))
        print(url, "signed" if "Signature" in request.headers else "not signed")
    except HTTPMessageSignaturesException as error:
        print(url, error)
P
venv/bin/python sign.py | tee seen
diff seen - <<'S'
https://images.example/photo.jpg signed
https://images.example/photo[1].jpg Invalid URL: expected an encoded absolute URL with a host
https://images.example/photo%5B1%5D.jpg signed
https://images.example/photo.jpg?f=a|b Invalid URL: expected an encoded absolute URL with a host
S
