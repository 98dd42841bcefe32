#!/usr/bin/env bash
# tarfile of Python 3.14.10 (by the changelog since 3.14.4, gh-141707): a tar is read without `frombuf` of the subclass of
# TarInfo that `tarfile.open(tarinfo=…)` is given, and behind a long name without its `fromtarfile`. Both are documented
# class methods, and in 3.11.7, 3.12.1 and 3.13.0 they are called for every header. A subclass that refuses headers there,
# such as names of a gigabyte, refuses nothing any more, and nothing says so. `_proc_member`, which a comment in tarfile.py
# gives to subclasses, is called for every header in all of them.
# PYTHON is one of 3.14.4 or later (python3.14). Exits with 1 if that changes, with 2 where there is none.
set -euo pipefail
PYTHON=${PYTHON:-python3.14}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 14, 4))' || { echo "needs Python 3.14.4 or later: give PYTHON=…"; exit 2; }
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
cat > headers.py <<'P'
import io
import tarfile
from collections import Counter

calls = Counter()

class Counted(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf, encoding, errors):
        calls["frombuf"] += 1
        return super().frombuf(buf, encoding, errors)

    @classmethod
    def fromtarfile(cls, tarfile):
        calls["fromtarfile"] += 1
        return super().fromtarfile(tarfile)

    def _proc_member(self, tarfile):
        calls["_proc_member"] += 1
        return super()._proc_member(tarfile)

data = io.BytesIO()
with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as tar:
    tar.addfile(tarfile.TarInfo("x" * 200))  # three blocks: a header of a long name, the name, the header behind it
data.seek(0)
with tarfile.open(fileobj=data, mode="r:", tarinfo=Counted) as tar:
    assert [len(name) for name in tar.getnames()] == [200]
print(*(calls[name] for name in ("frombuf", "fromtarfile", "_proc_member")))  # with the one that finds the end
P
found=$("$PYTHON" headers.py)
echo "$("$PYTHON" --version): frombuf, fromtarfile and _proc_member of the subclass were called $found times for two headers and the end (3.13.0: 3 3 2)"
test "$found" = "0 2 2"
