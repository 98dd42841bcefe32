"""What altalign is made of: allowed licences, no known vulnerabilities, a bill of materials, digests of programs."""

import email
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("supply_chain", ROOT / "tools" / "supply_chain.py")
assert SPEC is not None
assert SPEC.loader is not None
supply_chain: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(supply_chain)

LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
ALLOWED = tomllib.loads((ROOT / "tools" / "licences.toml").read_text(encoding="utf-8"))
ADVISORIES = json.loads((ROOT / "tools" / "advisories.json").read_text(encoding="utf-8"))
VERSIONS = {package["name"]: package["version"] for package in LOCK}


def test_every_package_that_is_installed_has_an_allowed_licence() -> None:
    packages = supply_chain.installed(VERSIONS)
    assert len(packages) > 30
    assert list(supply_chain.not_allowed(packages, ALLOWED)) == []


@pytest.mark.parametrize(
    ("declared", "others"),
    [
        ("License-Expression: MIT AND (Apache-2.0 OR BSD-3-Clause)", ""),
        ("License-Expression: MIT OR GPL-3.0-only", "GPL-3.0-only"),
        ("Classifier: License :: OSI Approved :: MIT License", ""),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", "GNU General Public License"),
        ("License: MIT", ""),
        ("License: Beerware\n        of two lines", "Beerware"),
        ("Summary: says nothing", "none declared"),
    ],
)
def test_a_licence_that_is_not_allowed_is_named_with_its_package(declared: str, others: str) -> None:
    metadata = email.message_from_string(f"Name: odd\nVersion: 1.2\n{declared}\n")
    found = list(supply_chain.not_allowed([("odd", metadata)], ALLOWED))
    assert len(found) == bool(others)
    assert all(f"odd 1.2: {others}" in line for line in found)
    excepted = {**ALLOWED, "exceptions": {"odd": next(iter(supply_chain.terms(metadata) - {"MIT"}), "")}}
    assert not list(supply_chain.not_allowed([("odd", metadata)], excepted))


def test_exceptions_are_of_packages_that_are_locked() -> None:
    assert set(ALLOWED["exceptions"]) <= set(VERSIONS)


def test_no_locked_version_has_a_known_vulnerability() -> None:
    assert len(ADVISORIES["advisories"]) > 100
    assert list(supply_chain.vulnerable(VERSIONS, ADVISORIES)) == []


def advisory(**affected: Any) -> dict[str, Any]:
    return {"id": "OSV-1", "affected": [{"package": {"ecosystem": "PyPI", "name": "odd"}, **affected}]}


@pytest.mark.parametrize(
    ("events", "affected"),
    [
        ([{"introduced": "0"}, {"fixed": "1.10"}], {"0.1", "1.9", "1.9.post1"}),
        ([{"introduced": "1.9"}, {"fixed": "1.10"}], {"1.9", "1.9.post1"}),
        ([{"introduced": "0"}, {"last_affected": "1.9"}], {"0.1", "1.9"}),
        ([{"introduced": "1.10"}], {"1.10", "2.0", "3.0"}),
        ([{"introduced": "0"}, {"fixed": "1.9"}, {"introduced": "2.0"}, {"fixed": "3.0"}], {"0.1", "2.0"}),
    ],
)
def test_versions_are_affected_as_osv_orders_events(events: list[dict[str, str]], affected: set[str]) -> None:
    found = advisory(ranges=[{"type": "ECOSYSTEM", "events": list(reversed(events))}])["affected"][0]
    versions = ("0.1", "1.9", "1.9.post1", "1.10", "2.0", "3.0")
    assert {version for version in versions if supply_chain.is_affected(version, found)} == affected


def test_a_vulnerability_is_named_with_its_repair_until_somebody_says_that_it_is_not_ours() -> None:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.3"}]}]
    known = {"not_ours": {}, "advisories": [{**advisory(ranges=ranges), "aliases": ["CVE-1"], "summary": "bad"}]}
    assert list(supply_chain.vulnerable({"odd": "1.2"}, known)) == ["odd 1.2: OSV-1 (bad): take 1.3"]
    assert list(supply_chain.vulnerable({"odd": "1.3", "other": "1.2"}, known)) == []
    assert list(supply_chain.vulnerable({"odd": "1.2"}, {**known, "not_ours": {"CVE-1": "of Windows"}})) == []


def test_an_export_of_osv_is_cut_to_what_is_locked_and_compared_alike() -> None:
    git = {"type": "GIT", "events": [{"introduced": "0"}], "repo": "…"}
    ranges = [git, {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]}]
    records = [
        {**advisory(ranges=ranges, versions=["1.0", "1.1"]), "details": "first\nsecond"},
        {**advisory(versions=["1.5"]), "id": "OSV-0"},
        {**advisory(ranges=ranges), "id": "OSV-2", "withdrawn": "2026-01-01T00:00:00Z"},
        {"id": "OSV-3", "affected": [{"package": {"ecosystem": "npm", "name": "odd"}}]},
    ]
    found = supply_chain.refreshed(records, {"odd": "1.0"}, {"not_ours": {"OSV-9": "why"}}, "2026-11-25")
    assert (found["as_of"], found["not_ours"]) == ("2026-11-25", {"OSV-9": "why"})
    assert [(each["id"], each["summary"]) for each in found["advisories"]] == [("OSV-0", ""), ("OSV-1", "first")]
    for version in ("1.0", "1.5", "2.0"):
        of_all = {each["id"] for each in records[:2] if supply_chain.is_affected(version, each["affected"][0])}
        cut = {each["id"] for each in found["advisories"] if supply_chain.is_affected(version, each["affected"][0])}
        assert of_all == cut


# The bill of materials ------------------------------------------------------------------------------------------------


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """What a locked package brings, with all that these extras bring."""
    package = next(each for each in LOCK if each["name"] == name)
    brought = [*package.get("dependencies", ())]
    for extra in extras:
        brought += package.get("optional-dependencies", {}).get(extra, ())
    yield name
    for each in brought:
        key = each["name"], ",".join(each.get("extra", ()))
        if key not in seen:
            seen.add(key)
            yield from needed(each["name"], frozenset(each.get("extra", ())), seen)


def test_the_bill_of_materials_is_that_of_the_lock_file() -> None:
    bill = json.loads((ROOT / "sbom.cdx.json").read_text(encoding="utf-8"))
    ours = next(each for each in LOCK if each["name"] == "altalign")
    wanted = set(needed("altalign", frozenset(ours["optional-dependencies"]), set())) - {"altalign"}
    found = {component["name"]: component["version"] for component in bill["components"]}
    assert found == {name: VERSIONS[name] for name in wanted}, "make sbom"
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "altalign")


def test_a_wheel_has_the_bill_of_materials(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        assert archive.read("altalign-0.1.0.dist-info/sboms/sbom.cdx.json") == (ROOT / "sbom.cdx.json").read_bytes()


# Programs that are no packages of Python ------------------------------------------------------------------------------


def test_every_module_of_go_has_its_digest() -> None:
    required = re.findall(r"^\t(\S+) (v\S+)", (ROOT / "tools" / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    sums = {tuple(line.split()[:2]) for line in (ROOT / "tools" / "go.sum").read_text(encoding="utf-8").splitlines()}
    assert len(required) > 50
    assert [each for each in required if each not in sums] == []


def test_make_installs_nothing_without_a_digest() -> None:
    """Versions after an @ would be asked of a server, which may answer anything."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not re.search(r"go install [^\n]*@", makefile)
    assert "GOFLAGS=-mod=readonly go -C tools install" in makefile
    lines = makefile.splitlines()
    assert [line for line in lines if "$(UV) sync" in line and "--locked" not in line] == []
    assert [line for line in lines if "pip install" in line and "--require-hashes" not in line] == []
