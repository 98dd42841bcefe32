"""The wheel: one import name, and commands that work beside somebody else's modules of our folders' names."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from altalign.settings.common import dump
from tests.support.curations import write_input
from tests.test_containerfile import copied
from tests.test_layers import LINKS, MODULES, ROOT
from tests.train.test_training_run import settings
from tests.web_server.pictures import picture
from tools import pythons

DEPENDENCIES = sysconfig.get_path("purelib")
FILES = {
    str(
        Path(*module.split("."), "__init__.py")
        if path.name == "__init__.py"
        else Path(*module.split(".")).with_suffix(".py")
    )
    for module, path in MODULES.items()
}


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
MODULES_OF_EXTRAS = {  # those without torch, and without the 70 packages of Google Cloud
    "heif": "pillow_heif",
    "hf": "huggingface_hub",
    "nsfw": "onnxruntime",
    "onnx": "onnxruntime",
    "pdq": "pdqhash",
}
USED = """
import altalign, pyarrow as pa
from altalign.models import languages

assert altalign.curate("altalign.toml", progress=False).is_finished
run = altalign.open("runs/photos")
assert not [check for check in altalign.audit(run) if check.passed is False]
captions = run.samples().to_table().column("caption").combine_chunks()
print(*sorted(captions.to_pylist()), sep="\\n")
model = languages.opened(languages.shipped_model())
print(set(languages.label(captions, model, margin_at_least=0.0).labels.to_pylist()))
"""


def ran(folder: Path, *argv: str | Path) -> str:
    """What a command prints. Nothing of the checkout is on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(project: Path, kind: str, folder: Path) -> Path:
    """The wheel or sdist of a project."""
    ran(project, sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder))
    (made,) = (path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_a_wheel_holds_all_of_our_modules_below_one_name(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"altalign", "altalign-0.1.0.dist-info"}
    assert {name for name in names if name.endswith(".py")} == FILES


def test_a_wheel_has_the_extras_of_the_project(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        metadata = archive.read("altalign-0.1.0.dist-info/METADATA").decode()
    assert {
        line.partition(": ")[2].replace("-", "_") for line in metadata.splitlines() if "Provides-Extra" in line
    } == {*EXTRAS}


def test_an_sdist_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built(ROOT, "sdist", tmp_path / "sdist")) as archive:
        assert not [member.name for member in archive if not (member.isfile() or member.isdir())]
        archive.extractall(tmp_path, filter="data")
    again = built(tmp_path / "altalign-0.1.0", "wheel", tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()


def test_what_the_image_is_made_of_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Links are copied as links, as COPY does."""
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
        elif "/" not in name:
            shutil.copy(ROOT / name, tmp_path)
    assert built(tmp_path, "wheel", tmp_path / "dist").read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("name", sorted([*LINKS, "tests", "benchmarks", "experiments"]))
def test_an_editable_installation_brings_no_other_name(name: str, tmp_path: Path) -> None:
    find = f"from importlib.util import find_spec; print(find_spec('altalign') is not None, find_spec({name!r}))"
    assert ran(tmp_path, sys.executable, "-c", find) == "True None\n"


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which the wheel was installed; its dependencies are this one's, without the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    ran(folder, sys.executable, "-m", "venv", folder)
    before = {path.name for path in installed(folder).iterdir()}
    ran(folder, folder / "bin" / "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    brought = {path.name for path in installed(folder).iterdir()} - before
    assert brought == {"altalign", "altalign-0.1.0.dist-info"}
    (installed(folder) / "dependencies.pth").write_text(f"{DEPENDENCIES}\n", encoding="utf-8")
    return folder


def installed(environment: Path) -> Path:
    """Its site-packages."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


@pytest.mark.runs
@pytest.mark.trained
def test_installed_commands_import_nothing_of_the_folder_they_work_in(environment: Path, tmp_path: Path) -> None:
    """Curation with its processes, training in one process and in two."""
    for name in LINKS:
        theirs = tmp_path / (f"{name}/__init__.py" if name in ("eval", "pipelines") else f"{name}.py")
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("raise SystemExit(f'{__file__} was imported')\n", encoding="utf-8")
    write_input(tmp_path)
    python = environment / "bin" / "python"
    where = ran(tmp_path, python, "-c", "import altalign.train; print(altalign.train.__file__)")
    assert Path(where.strip()) == installed(environment) / "altalign" / "train" / "__init__.py"
    ran(tmp_path, environment / "bin" / "altalign", "curate", "config.toml")
    for name, launcher in {"one": [], "two": ["-m", "torch.distributed.run", "--nproc-per-node", "2"]}.items():
        values = settings(tmp_path, run={"folder": name}, data={"runs": ["run"], "workers": 1}, schedule={"steps": 2})
        (tmp_path / f"{name}.toml").write_text(dump(values), encoding="utf-8")
        ran(tmp_path, python, *launcher, "-m", "altalign", "train", f"{name}.toml")
        assert (tmp_path / name / "eval" / "step-0000002" / "metrics.json").is_file()


@pytest.mark.installs
@pytest.mark.parametrize("version", pythons.versions())
def test_an_empty_environment_installs_the_wheel_alone_and_curates(version: str, wheel: Path, tmp_path: Path) -> None:
    """With what the package registry has for this Python; extras that bring torch are resolved, and not downloaded."""
    found = pythons.found(version) or pytest.skip(f"no Python {version} on this machine")
    ran(tmp_path, found, "-m", "venv", "environment")
    python, pip, command = (tmp_path / "environment" / "bin" / name for name in ("python", "pip", "altalign"))
    ran(tmp_path, pip, "install", "--quiet", wheel)
    assert ran(tmp_path, command, "--version") == "altalign 0.1.0\n"
    texts = ["a red dog on the grass", "snow over the quiet village"]
    (tmp_path / "photos").mkdir()
    for text in texts:
        (tmp_path / "photos" / f"{text}.png").write_bytes(picture(text))
        (tmp_path / "photos" / f"{text}.txt").write_text(text, encoding="utf-8")
    ran(tmp_path, command, "init", "photos")
    ran(tmp_path, command, "curate", "altalign.toml")
    assert ran(tmp_path, python, "-c", USED).splitlines() == [*texts, "{'en'}"]
    ran(tmp_path, pip, "install", "--quiet", f"{wheel}[{','.join(MODULES_OF_EXTRAS)}]")
    ran(tmp_path, python, "-c", f"import {', '.join(MODULES_OF_EXTRAS.values())}")
    ran(tmp_path, pip, "check")
    ran(tmp_path, pip, "install", "--quiet", "--dry-run", f"{wheel}[{','.join(EXTRAS)}]")
