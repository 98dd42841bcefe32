"""Fetches onto a disk that is always too small, until it is not.

`unshare -m python -m tests.end_to_end.web_filling FOLDER LOG`.

The disk grows by a few pages each time a run fails on it while it fetches. A line of JSON a failure, with what was in
hand and how often each URL had been asked for by then (LOG is the server's), then one of how it ended.
"""

import json
import os
import sys
from pathlib import Path

from tests.end_to_end.filling import mounted, option, ran, used
from tests.end_to_end.runs import tree
from tests.end_to_end.web_inputs import in_journals
from tests.end_to_end.web_killing import requests

PAGES = 60  # more than an image of the tests takes

if __name__ == "__main__":
    base, log = Path(sys.argv[1]), Path(sys.argv[2])
    os.chdir(base)
    disk = base / "disk"
    disk.mkdir()
    mounted(disk, "size=256m", is_new=True)
    for folder, until in (("disk/whole", "write"), ("disk/run", "judge")):
        code, said = ran(folder, "--until", until)
        assert code == 0, said
    code = 1
    while code:
        mounted(disk, option("pages", used(disk, "pages") + PAGES), is_new=False)
        code, said = ran("disk/run", "--until", "fetch")
        report = {"code": code, "said": said, "had": sorted(in_journals(disk / "run")), "requests": requests(log)}
        print(json.dumps(report), flush=True)  # noqa: T201 - its result
        if "no space left" not in said:
            break
    mounted(disk, "size=256m", is_new=False)
    code, said = ran("disk/run")
    differs = sorted(set(tree(disk / "run").items()) ^ set(tree(disk / "whole").items()))
    print(json.dumps({"code": code, "said": said, "differs": differs, "requests": requests(log)}))  # noqa: T201 - its result
