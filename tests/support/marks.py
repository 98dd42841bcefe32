"""Images with what rights holders write into them: XMP with `plus:DataMining`, and C2PA's training assertions."""

import struct
from collections.abc import Mapping
from typing import Any

import cbor2
from PIL.PngImagePlugin import PngInfo

from tests.support.pictures import chunk, encoded, picture

PACKET = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""'
    ' xmlns:plus="http://ns.useplus.org/ldf/xmp/1.0/"{attribute}>{element}</rdf:Description></rdf:RDF></x:xmpmeta>'
    '<?xpacket end="w"?>'
)
CBOR, JSON = "63626F72-0011-0010-8000-00AA00389B71", "6A736F6E-0011-0010-8000-00AA00389B71"
STORE, MANIFEST, ASSERTIONS = (
    f"{name.encode().hex()}-0011-0010-8000-00AA00389B71" for name in ("c2pa", "c2ma", "c2as")
)


def packet(mining: str) -> bytes:
    """An XMP packet: an attribute of XML (`plus:DataMining="…"`), or an element."""
    is_element = mining.startswith("<")
    return PACKET.format(attribute="" if is_element else f" {mining}", element=mining if is_element else "").encode()


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


def superbox(uuid: str, label: str, content: bytes, salt: bytes = b"") -> bytes:
    """A box of JUMBF (ISO 19566-5) with its description, which may have a salt, as manifests of C2PA have."""
    private = box(b"c2sh", salt) if salt else b""
    toggles = bytes([3 + (16 if salt else 0)])
    description = bytes.fromhex(uuid.replace("-", "")) + toggles + label.encode() + b"\0" + private
    return box(b"jumb", box(b"jumd", description) + content)


def manifest_store(assertions: Mapping[str, object], *, salt: bytes = b"", filler: int = 0) -> bytes:
    """A manifest store of C2PA with assertions by label, in CBOR; one that is bytes is its content as it stands."""
    boxes = superbox(JSON, "stds.schema-org.CreativeWork", box(b"json", b" " * filler + b"{}"))
    for label, value in assertions.items():
        content = value if isinstance(value, bytes) else cbor2.dumps(value)
        boxes += superbox(CBOR, label, box(b"cbor", content), salt)
    return superbox(STORE, "c2pa", superbox(MANIFEST, "urn:uuid:1", superbox(ASSERTIONS, "c2pa.assertions", boxes)))


def with_manifests(image: bytes, store: bytes) -> bytes:
    """A JPEG, PNG or WebP with a manifest store."""
    if image.startswith(b"\xff\xd8"):
        header, content = store[:8], store[8:]
        parts = [content[at : at + 60_000] for at in range(0, len(content), 60_000)]
        segments = b""
        for number, part in enumerate(parts, start=1):
            segment = b"JP" + struct.pack(">HI", 1, number) + header + part
            segments += b"\xff\xeb" + struct.pack(">H", 2 + len(segment)) + segment
        return image[:2] + segments + image[2:]
    if image.startswith(b"\x89PNG"):
        return image[:33] + chunk(b"caBX", store) + image[33:]
    riff = image[8:] + b"C2PA" + struct.pack("<I", len(store)) + store + b"\0" * (len(store) % 2)
    return b"RIFF" + struct.pack("<I", len(riff)) + riff


def image_of(case: Mapping[str, Any], kind: str, side: int = 64) -> bytes:
    """The image of a case of tests/cases/reservations.toml with its marks: a JPEG, PNG or WebP."""
    options: dict[str, Any] = {}
    if "xmp" in case and kind == "png":
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", packet(case["xmp"]).decode())
    elif "xmp" in case:
        options["xmp"] = packet(case["xmp"])
    data = encoded(picture(side, side), kind, **options)
    return with_manifests(data, manifest_store(case["c2pa"], salt=b"s" * 16)) if "c2pa" in case else data
