"""The Containerfile against the repository.

What it copies is there, its versions are those of the lock file, its settings those that a command gives itself.

No image is built here: that takes a daemon.
"""

import fnmatch
import importlib.metadata
import inspect
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from altalign.cli import VERBS
from altalign.machine import startup

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKED = {
    package["name"]: package["version"]
    for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
}


def instructions() -> list[tuple[str, str]]:
    """Every instruction, on one line each, without comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Containerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def arguments() -> dict[str, str]:
    return {name: value.strip('"') for name, _, value in (rest.partition("=") for rest in of("ARG"))}


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name; the last one has none."""
    made: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            made[rest.partition(" AS ")[2]] = []
        if made:
            list(made.values())[-1].append((name, rest))
    return made


def environment() -> dict[str, str]:
    """Of command and workers."""
    set_there = [rest for name, rest in stages()["installed"] if name == "ENV"]
    return dict(word.split("=", 1) for word in shlex.split(" ".join(set_there)))


def copied() -> list[str]:
    """What comes from the checkout."""
    return [source for rest in of("COPY") if not rest.startswith("--from") for source in rest.split()[:-1]]


def test_whatever_is_copied_is_in_the_checkout_and_not_ignored() -> None:
    ignored = [
        line
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert ignored[0] == "*"
    for source in copied():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied())
    assert not any(fnmatch.fnmatch(".venv", line) for line in ignored if line.startswith("!"))


def test_all_of_our_packages_are_in_the_wheel() -> None:
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied())


def test_versions_are_those_of_the_lock_file() -> None:
    boot = re.findall(r"apache/beam/sdks/v2 v(\S+)", (ROOT / "tools" / "go.mod").read_text(encoding="utf-8"))
    assert boot == [LOCKED["apache-beam"]] == [importlib.metadata.version("apache-beam")]
    python = tuple(map(int, re.findall(r"python:(\d+)\.(\d+)", arguments()["PYTHON_IMAGE"])[0]))
    at_least, below = (
        tuple(map(int, part.split("."))) for part in re.findall(r"[\d.]+", PROJECT["project"]["requires-python"])
    )
    assert at_least <= python < below


def test_extras_are_those_of_the_project_and_bring_google_cloud() -> None:
    extras = arguments()["EXTRAS"].split()
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])
    assert "dataflow" in extras


def test_a_worker_is_given_what_a_command_gives_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam's boot program knows nothing of `startup.prepare`."""
    source = inspect.getsource(startup.prepare).split("return")[0]
    given = dict(re.findall(r'"([A-Z_]+)": "([^"]+)"', source))
    assert len(given) == 3
    assert given.items() <= environment().items()


def test_kernels_are_made_for_one_kind_of_machine_and_kept_where_anybody_may_add_to_them() -> None:
    set_there = environment()
    assert set_there["NUMBA_CPU_FEATURES"] == ""  # else those of the machine that builds the image
    assert set_there["NUMBA_CPU_NAME"] == "${KERNELS_FOR}"
    assert any(f"chmod -R a+rwX {set_there['NUMBA_CACHE_DIR']}" in rest for rest in of("RUN"))


def test_commands_that_it_runs_are_verbs_with_configs_that_are_there() -> None:
    runs = " ".join(of("RUN"))
    verbs = re.findall(r"altalign (\w+)", runs)
    assert verbs[:2] == ["demo", "curate"]
    assert set(re.findall(r"(?:^|&& )\s*altalign (\w+)", runs)) <= set(VERBS)
    assert all((ROOT / name).is_file() for name in re.findall(r"configs/\S+\.toml", runs))


def test_a_worker_starts_beams_boot_program_and_not_as_root() -> None:
    assert stages()["worker"] == [
        ("FROM", "installed AS worker"),
        ("COPY", "--from=boot /out/container /opt/apache/beam/boot"),
        ("WORKDIR", "/tmp"),
        ("ENTRYPOINT", '["/opt/apache/beam/boot"]'),
    ]
    assert any("-m ensurepip" in rest for rest in of("RUN"))  # the program asks pip whether Beam is there
    assert stages()["installed"][-1] == ("USER", "${RUN_AS}")
    assert of("USER") == ["${RUN_AS}"]
    assert int(arguments()["RUN_AS"]) > 0  # a number: Kubernetes cannot tell whether a name is root
    assert (ROOT / "pipelines" / "engine" / "worker_pool.py").is_file()


def test_what_it_builds_is_the_command_where_files_are_mounted() -> None:
    """So what is built without a target needs no image of Go."""
    assert stages()[""] == [("FROM", "installed"), ("WORKDIR", "/data"), ("ENTRYPOINT", '["altalign"]')]
    install = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    assert re.search(r'-v "\$PWD:/data" altalign:0\.1\.0 curate ', install)


def test_images_below_it_are_named_by_digest() -> None:
    below = {rest.split()[0] for rest in of("FROM")} - stages().keys()
    assert below == {"${PYTHON_IMAGE}", "${GO_IMAGE}"}
    for name in below:
        assert re.fullmatch(r"docker\.io/\S+:\S+@sha256:[0-9a-f]{64}", arguments()[name[2:-1]])


def test_uv_itself_is_installed_by_hashes_here_and_there() -> None:
    wanted = "--require-hashes -r uv.txt"
    assert [line for line in of("RUN") if "pip install" in line and wanted not in line] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [line for line in makefile.splitlines() if "bin/pip install" in line and wanted not in line] == []
    pinned = (ROOT / "uv.txt").read_text(encoding="utf-8")
    assert re.search(r"^uv==[0-9.]+ ", pinned, re.MULTILINE)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", pinned)) > 10
