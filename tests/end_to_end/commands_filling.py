"""Gives a command on a disk that is too small, until it is not.

`unshare -m python -m tests.end_to_end.commands_filling FOLDER RESULTS COMMAND…`. A tmpfs, in a mount namespace of its
own, has a copy of FOLDER/start and some more pages: a part of those that the command takes. A line of JSON a failure,
then one of how it ended.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from tests.end_to_end.commands_killing import CLOCK, state
from tests.end_to_end.filling import mounted, option, ran_command, used

PARTS = (0.05, 0.4, 0.8)

if __name__ == "__main__":
    base, results, command = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    time.gmtime = lambda *_: CLOCK
    disk = base / "disk"
    disk.mkdir()
    mounted(disk, "size=256m", is_new=True)
    shutil.copytree(base / "start", disk, dirs_exist_ok=True)
    before, old = used(disk, "pages"), state(disk, results)
    shutil.copytree(base / "start", base / "whole")
    os.chdir(base / "whole")
    code, said = ran_command(command)
    assert code == 0, said
    new = state(base / "whole", results)
    taken = sum(-(-path.stat().st_size // 4096) for path in (base / "whole").rglob("*") if path.is_file())
    was = sum(-(-path.stat().st_size // 4096) for path in (base / "start").rglob("*") if path.is_file())
    os.chdir(disk)
    for part in PARTS:
        mounted(disk, option("pages", before + max(1, int(part * max(8, taken - was)))), is_new=False)
        code, said = ran_command(command)
        if code == 0:
            break
        is_old = all(state(disk, [name])[name] == old[name] for name in results if old[name] is not None)
        print(json.dumps({"code": code, "said": said, "is_old": is_old}), flush=True)  # noqa: T201 - its result
    mounted(disk, "size=256m", is_new=False)
    code, said = ran_command(command)
    now = state(disk, results)
    print(json.dumps({"code": code, "said": said, "differs": [name for name in results if now[name] != new[name]]}))  # noqa: T201
