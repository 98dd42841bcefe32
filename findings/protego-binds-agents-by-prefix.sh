#!/usr/bin/env bash
# protego 0.7.0: a group of robots.txt for "bot" binds the agent "botany", and one for "image" binds "imagecrawler".
# RFC 9309, 2.2.1, compares whole product tokens, as Google's parser does: neither group concerns these agents.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check protego==0.7.0
venv/bin/python - <<'P'
from protego import Protego

for named, agent in (("bot", "botany"), ("image", "imagecrawler"), ("botany", "bot")):
    rules = Protego.parse(f"User-agent: {named}\nDisallow: /\n")
    print(f"a group for {named!r} forbids {agent!r}:", not rules.can_fetch("https://a.example/x", agent))
assert not Protego.parse("User-agent: bot\nDisallow: /\n").can_fetch("https://a.example/x", "botany")
assert Protego.parse("User-agent: botany\nDisallow: /\n").can_fetch("https://a.example/x", "bot")
P
