#!/usr/bin/env bash
# duckdb 2.0.0: whether `connect(config={…})` takes `temp_directory` together with `enable_external_access = False`
# depends on the order of the dictionary. With the directory first it raises PermissionException ("Modifying the
# temp_directory has been disabled by configuration"), with the directory last it connects, and both hold.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check duckdb==2.0.0
venv/bin/python - <<'P'
import duckdb

settings = {"temp_directory": "spilled", "enable_external_access": False}
try:
    duckdb.connect(config=settings)
except duckdb.PermissionException as error:
    print("directory first:", error)
else:
    raise SystemExit("the directory may be first now")
connection = duckdb.connect(config=dict(reversed(settings.items())))
query = "SELECT current_setting('temp_directory'), current_setting('enable_external_access')"
print("directory last:", found := connection.execute(query).fetchone())
assert found == ("spilled", False)
P
