"""Signed requests, verified on loopback by a verifier that the examples of RFC 9421 and of the drafts have tested."""

import time
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from altalign.errors import UsageError
from altalign.pipelines.web.calls import Target, TargetError
from altalign.pipelines.web.client import Client
from altalign.pipelines.web.signing import Signer, public_key, read_key
from altalign.settings.curate import FetchSettings
from tests.pipelines.web import signatures
from tests.pipelines.web.servers import Server, script

# RFC 9421, B.1.4, and its thumbprint in the drafts
PRIVATE = Ed25519PrivateKey.from_private_bytes(urlsafe_b64decode("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU="))
KEY = {
    "kty": "OKP",
    "crv": "Ed25519",
    "kid": "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U",
    "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs",
    "use": "sig",
}
AGENT = "https://agent.example"
EXAMPLES = {  # method, authority, target, headers
    "RFC 9421, B.2.6": (
        "POST",
        "example.com",
        "/foo?param=Value&Pet=dog",
        {
            "date": "Tue, 20 Apr 2021 02:07:55 GMT",
            "content-type": "application/json",
            "content-length": "18",
            "signature-input": 'sig-b26=("date" "@method" "@path" "@authority" "content-type" "content-length")'
            ';created=1618884473;keyid="test-key-ed25519"',
            "signature": "sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKR"
            "Cw==:",
        },
    ),
    "web-bot-auth, test_data/web_bot_auth_architecture_v2.json, sig2": (
        "GET",
        "example.com",
        "/path/to/resource",
        {
            "signature-agent": 'agent2="https://signature-agent.test"',
            "signature-input": 'sig2=("@authority" "signature-agent";key="agent2");created=1735689600'
            ';keyid="poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U";alg="ed25519";expires=4889289600;nonce="n9p433xm+NJ3ph3'
            'upfBIGmsuwHw387YV7Q/F+6BSpGCVjYCqQw6rznNA8PVVLySrAWsv0hQtFioQb6E1YsauiA==";tag="web-bot-auth"',
            "signature": "sig2=:RdNFx5Bj6au3YgAMQL/RzmUlZE8QZLIaXGRpw985hWnwPfMxT228NMk6ehRS1PSl4e8PhbNZACSanGdhEwYCCg"
            "==:",
        },
    ),
}


def pem(key: Ed25519PrivateKey, password: bytes | None = None) -> bytes:
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("key") / "key.pem"
    path.write_bytes(pem(PRIVATE))
    return str(path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_verifier_takes_the_examples_and_nothing_that_differs(name: str) -> None:
    method, authority, target, headers = EXAMPLES[name]
    signatures.verify(KEY, method, authority, target, headers)
    with pytest.raises(InvalidSignature):
        signatures.verify(KEY, method, "example.org", target, headers)
    other = {**KEY, "x": public_key(Ed25519PrivateKey.generate())["x"]}
    with pytest.raises(InvalidSignature):
        signatures.verify(other, method, authority, target, headers)


def test_a_public_key_is_published_by_its_thumbprint(key_file: str) -> None:
    assert public_key(read_key(key_file)) == KEY
    # RFC 8037, A.1 and A.3
    private = Ed25519PrivateKey.from_private_bytes(urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="))
    assert public_key(private)["kid"] == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_every_request_is_signed_for_its_site_and_path_and_no_other(key_file: str) -> None:
    began = int(time.time())
    with Server({"/moved": script(302, Location="/image?a=b"), "/image?a=b": script(200, b"image")}) as server:
        settings = FetchSettings(
            source="web",
            allow_addresses=[f"127.0.0.1:{server.port}"],
            signing_key=key_file,
            signature_agent=AGENT,
        )
        with Client(settings) as client:
            (response,) = client.fetch([server.url("/moved")])
    assert response.body == b"image"
    paths = ["/robots.txt", "/.well-known/tdmrep.json", "/moved", "/image?a=b"]
    assert [request.target for request in server.requests] == paths
    for request in server.requests:
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers["signature-agent"] == f'sig1="{AGENT}"'
        signatures.verify(KEY, "GET", f"127.0.0.1:{server.port}", request.target, headers)
        with pytest.raises(InvalidSignature):
            signatures.verify(KEY, "GET", f"127.0.0.1:{server.port}", "/other", headers)
        found = signatures.parameters(headers["signature-input"])
        assert (found["tag"], found["keyid"], found["alg"]) == ("web-bot-auth", KEY["kid"], "ed25519")
        assert began <= int(found["created"]) <= time.time()
        assert int(found["expires"]) - int(found["created"]) == 300


def test_no_request_is_signed_unless_the_settings_say_so() -> None:
    with Server({"/image": script(200, b"image")}) as server:
        settings = FetchSettings(source="web", allow_addresses=[f"127.0.0.1:{server.port}"])
        with Client(settings) as client:
            list(client.fetch([server.url("/image")]))
    assert not any(name.lower().startswith("signature") for request in server.requests for name in request.headers)


@given(text=st.text(max_size=30), host=st.sampled_from(["a.example", "127.0.0.1:8080", "[::1]", "bücher.example:443"]))
def test_whatever_can_be_asked_for_can_be_signed(key_file: str, text: str, host: str) -> None:
    try:
        target = Target.parse(f"https://{host}/{text}")
    except TargetError:
        return
    headers = {name.lower(): value for name, value in Signer(key_file, AGENT).headers(target).items()}
    authority = target.url.split("/")[2]
    signatures.verify(KEY, "GET", authority, target.url.removeprefix(target.origin), headers)


@pytest.mark.parametrize("content", [b"", b"key", pem(PRIVATE, b"password"), None, "ec"])
def test_what_is_no_key_ends_in_a_line(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "key.pem"
    if content == "ec":
        ec = generate_private_key(SECP256R1())
        content = ec.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    if isinstance(content, bytes):
        path.write_bytes(content)
    settings = FetchSettings(source="web", signing_key=str(path), signature_agent=AGENT)
    with pytest.raises(UsageError, match=r"^\[fetch\] signing_key: .*key\.pem: .*openssl genpkey"):
        Client(settings)


@pytest.mark.parametrize(
    "given",
    [
        {"signing_key": "key.pem"},
        {"signature_agent": AGENT},
        {"signing_key": "key.pem", "signature_agent": "http://agent.example"},
        {"signing_key": "key.pem", "signature_agent": "https://agent.example/keys"},
    ],
)
def test_a_key_and_its_agent_go_together(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        FetchSettings.model_validate({"source": "web", **given})
