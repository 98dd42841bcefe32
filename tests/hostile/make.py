"""All cases of the corpus, and how their files are written.

`python -m tests.hostile.make FOLDER [NAME ...]` writes the files and a `config.toml` for `altalign curate`, to look at
one case by hand.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.hostile import file_cases, image_cases, web_cases
from tests.hostile.cases import Case
from tests.hostile.files import neighbours

CASES: Mapping[str, Sequence[Case]] = {
    "Pages": web_cases.PAGES,
    "Responses": web_cases.RESPONSES,
    "Web archives": web_cases.ARCHIVES,
    "Metadata of web archives": web_cases.METADATA,
    "Captions and URLs": web_cases.TEXTS,
    "Tars": file_cases.TARS,
    "Tables of text": file_cases.TEXT_TABLES,
    "Parquet and Arrow": file_cases.BINARY_TABLES,
    "Folders": file_cases.FOLDERS,
    "Images": image_cases.IMAGES,
}

_LIMITS = "[text]\nimages_per_text_at_most = 1000\n\n[engine]\nworkers = 2\n"  # one caption serves many cases


def every() -> list[Case]:
    """All cases, in the order of the tables."""
    return [case for cases in CASES.values() for case in cases]


def write(folder: Path, cases: Sequence[Case], *, skip_unreadable: bool) -> Path:
    """The files of these cases and a config that reads each as an input of its own; returns the config's path."""
    (folder / "input").mkdir(parents=True)
    (folder / "input" / "neighbours.warc.gz").write_bytes(neighbours(case.name for case in cases))
    for case in cases:
        path = folder / "input" / case.file
        if case.kind == "folder":
            path.mkdir()
            file_cases.unpacked(case.build(case.name), str(path))
        else:
            path.write_bytes(case.build(case.name))
    skip = f"skip_unreadable = {str(skip_unreadable).lower()}\n"
    inputs = [
        f'[[input]]\nname = "{case.name}"\nkind = "{case.kind}"\npaths = ["input/{case.file}"]\n{case.settings}{skip}'
        for case in cases
    ]
    config = [
        '[run]\nfolder = "run"\n',
        '[[input]]\nname = "neighbours"\nkind = "warc"\npaths = ["input/neighbours.warc.gz"]\n',
        *inputs,
    ]
    path = folder / "config.toml"
    path.write_text("\n".join([*config, _LIMITS]), encoding="utf-8")
    return path


def main(args: Sequence[str]) -> None:
    """Write the files of the cases named, or of all that a run reads."""
    wanted = set(args[1:])
    cases = [case for case in every() if case.name in wanted or (not wanted and case.exit_code != 2)]
    write(Path(args[0]), cases, skip_unreadable=not wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
