"""What altalign is made of, checked against lists in this folder, offline.

    python tools/supply_chain.py licences             what is installed, against licences.toml
    python tools/supply_chain.py vulnerabilities      uv.lock, against advisories.json
    python tools/supply_chain.py refresh PyPI.zip     advisories.json anew, from OSV's export of PyPI
    python tools/supply_chain.py sbom UV              sbom.cdx.json anew, from uv.lock

OSV publishes its export at https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LICENCES, ADVISORIES = (Path(__file__).with_name(name) for name in ("licences.toml", "advisories.json"))
SBOM = ROOT / "sbom.cdx.json"
KEPT = ("id", "aliases", "published", "modified", "summary")


def locked(text: str) -> dict[str, str]:
    """Name and version of every package in a lock file of uv."""
    return {package["name"]: package.get("version", "") for package in tomllib.loads(text)["package"]}


# Licences -------------------------------------------------------------------------------------------------------------


def terms(metadata: Any) -> set[str]:
    """The licences that a package declares: of its SPDX expression, else its classifiers, else its free text."""
    classifiers = [
        line for line in metadata.get_all("Classifier") or [] if line.startswith("License :: OSI Approved :: ")
    ]
    expression = metadata.get("License-Expression")
    if classifiers and not expression:
        return {line.rpartition(" :: ")[2] for line in classifiers}
    said = expression or (metadata.get("License") or "none declared").strip().partition("\n")[0]
    return set(re.split(r" AND | OR ", re.sub(r"[()]", "", said)))


def not_allowed(packages: Iterable[tuple[str, Any]], allowed: Any) -> Iterator[str]:
    """A line for each package with a licence that is not in the list; each exception is of one package."""
    for name, metadata in packages:
        own = {allowed["exceptions"][name]} if name in allowed["exceptions"] else set[str]()
        if others := sorted(terms(metadata) - set(allowed["allowed"]) - own):
            repair = "not in tools/licences.toml; read it, or do without the package"
            yield f"{name} {metadata['Version']}: {', '.join(others)}: {repair}"


def installed(names: Iterable[str]) -> list[tuple[str, Any]]:
    """The packages of these that are installed here, with their metadata."""
    found: dict[str, Any] = {}
    for each in importlib.metadata.distributions():
        found[canonicalize_name(each.metadata["Name"])] = each.metadata
    return [(name, found[name]) for name in sorted(names) if name in found]


# Vulnerabilities ------------------------------------------------------------------------------------------------------


def is_affected(version: str, affected: Any) -> bool:
    """Whether a version is among those that an entry of an advisory names, as OSV's schema defines it."""
    if version in affected.get("versions", ()):
        return True
    return any(
        _is_within(Version(version), events["events"])
        for events in affected.get("ranges", ())
        if events["type"] == "ECOSYSTEM"
    )


def _is_within(version: Version, events: Sequence[dict[str, str]]) -> bool:
    is_in = False
    for at, kind in sorted((Version(at), kind) for event in events for kind, at in event.items()):
        if version > at or (version == at and kind != "last_affected"):
            is_in = kind == "introduced"
    return is_in


def vulnerable(versions: dict[str, str], advisories: Any) -> Iterator[str]:
    """A line for each advisory that a version is affected by, but for those that are looked at and not ours."""
    for advisory in advisories["advisories"]:
        if set(advisories["not_ours"]) & {advisory["id"], *advisory.get("aliases", ())}:
            continue
        for affected in advisory["affected"]:
            name = affected["package"]["name"]
            if versions.get(name) and is_affected(versions[name], affected):
                events = [event for each in affected.get("ranges", ()) for event in each["events"]]
                fixed = [event["fixed"] for event in events if "fixed" in event]
                repair = f"take {' or '.join(fixed)}" if fixed else "no version is named that is without it"
                yield f"{name} {versions[name]}: {advisory['id']} ({advisory.get('summary', '')}): {repair}"


def refreshed(records: Iterable[Any], versions: dict[str, str], before: Any, today: str) -> Any:
    """The list anew: the advisories of an export that are of locked packages, without what nobody compares."""
    kept = []
    for record in records:
        affected = [each for each in record.get("affected", ()) if _is_locked(each.get("package", {}), versions)]
        if affected and "withdrawn" not in record:
            kept.append(trimmed(record, affected))
    kept.sort(key=lambda record: record["id"])
    return {"as_of": today, "source": "OSV's export of PyPI", "not_ours": before["not_ours"], "advisories": kept}


def _is_locked(package: Any, versions: dict[str, str]) -> bool:
    return package.get("ecosystem") == "PyPI" and canonicalize_name(package["name"]) in versions


def trimmed(record: Any, affected: Sequence[Any]) -> Any:
    """An advisory in OSV's schema, of its packages here alone; versions stay where no range says the same."""
    short = {name: record[name] for name in KEPT if record.get(name)}
    short.setdefault("summary", record.get("details", "").partition("\n")[0][:200])
    short["affected"] = []
    for each in affected:
        ranges = [part for part in each.get("ranges", ()) if part["type"] == "ECOSYSTEM"]
        package = {"ecosystem": "PyPI", "name": canonicalize_name(each["package"]["name"])}
        own = {"ranges": [{"type": "ECOSYSTEM", "events": part["events"]} for part in ranges]} if ranges else {}
        short["affected"].append({"package": package, **(own or {"versions": each.get("versions", [])})})
    return short


# The bill of materials ------------------------------------------------------------------------------------------------


def bill(exported: Any) -> Any:
    """What uv exports, without what differs between two calls, and without files, whose hashes uv.lock has."""
    exported = {name: value for name, value in exported.items() if name != "serialNumber"}
    exported["metadata"] = {name: value for name, value in exported["metadata"].items() if name != "timestamp"}
    components = [exported["metadata"]["component"], *exported["components"]]
    named = {each["bom-ref"]: f"{each['name']}@{each['version']}" for each in components}  # uv's have a number of order
    for component in components:
        component.pop("externalReferences", None)
        component["bom-ref"] = named[component["bom-ref"]]
    exported["dependencies"] = [
        {name: named[value] if name == "ref" else sorted(map(named.__getitem__, value)) for name, value in each.items()}
        for each in exported["dependencies"]
    ]
    return exported


def main(arguments: Sequence[str]) -> int:
    """One of the four; a line for each finding."""
    versions = locked((ROOT / "uv.lock").read_text(encoding="utf-8"))
    advisories = json.loads(ADVISORIES.read_text(encoding="utf-8"))
    found: list[str] = []
    match arguments:
        case ["licences"]:
            packages = installed(versions)
            found = list(not_allowed(packages, tomllib.loads(LICENCES.read_text(encoding="utf-8"))))
            print(f"{len(packages)} of {len(versions)} locked packages are installed here")
        case ["vulnerabilities"]:
            found = list(vulnerable(versions, advisories))
            print(f"{len(advisories['advisories'])} advisories of {advisories['as_of']}, {len(versions)} packages")
        case ["refresh", path]:
            with ZipFile(path) as archive:
                records = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")]
            today = datetime.now(UTC).date().isoformat()
            new = refreshed(records, versions, advisories, today)
            lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in new.pop("advisories"))
            head = json.dumps(new, indent=1, ensure_ascii=False).removesuffix("\n}")
            ADVISORIES.write_text(f'{head},\n "advisories": [\n{lines}\n]}}\n', encoding="utf-8")
        case ["sbom", uv]:
            export = [uv, "export", "--locked", "--quiet", "--format", "cyclonedx1.5", "--all-extras", "--no-dev"]
            done = subprocess.run(export, cwd=ROOT, capture_output=True, text=True, check=True)
            SBOM.write_text(json.dumps(bill(json.loads(done.stdout)), indent=1) + "\n", encoding="utf-8")
        case _:
            print(__doc__)
            return 2
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
