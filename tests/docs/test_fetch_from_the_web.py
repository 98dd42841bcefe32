"""The guide to fetching from the web is true: its server runs in a process of its own, its other commands beside it, in
order.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks, prints

GUIDE = blocks(ROOT / "docs" / "guides" / "fetch-from-the-web.md")
PORT = 8642  # in the guide and in configs/demo-served.toml; here it may be taken


def run(text: str, kind: str, folder: Path) -> "subprocess.Popen[str]":
    """Begin a block, `altalign` being that of this interpreter."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    argv = (
        [sys.executable, "-c", text]
        if kind == "python"
        else ["bash", "-euc", f'altalign() {{ "{sys.executable}" -m altalign.cli "$@"; }}\n{text}']
    )
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def port() -> int:
    """A free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Path:
    """A checkout's configs, for a server at this port."""
    (tmp_path / "configs").mkdir()
    for path in (ROOT / "configs").glob("demo*.toml"):
        (tmp_path / "configs" / path.name).write_text(
            path.read_text(encoding="utf-8").replace(str(PORT), str(port)), encoding="utf-8"
        )
    return tmp_path


@pytest.fixture
def served(folder: Path, port: int) -> Iterator[str]:
    """What the server of the guide says until it serves; then it serves until Ctrl-C."""
    (block,) = [block for block in GUIDE if block.note == "the server"]
    assert block.text.startswith("altalign ")
    argv = [sys.executable, "-m", "altalign.cli", *block.text.split()[1:], "--port", str(port)]
    server = subprocess.Popen(
        argv, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    said = ""
    while f"{block.output}".splitlines()[-1] not in said:
        line = server.stdout.readline()
        assert line, f"the server has ended: {said}"
        said += line
    yield said
    server.send_signal(signal.SIGINT)
    server.communicate()
    assert server.returncode == 0


@pytest.mark.guides
def test_the_commands_run_beside_the_server_and_print_what_the_guide_says(folder: Path, served: str, port: int) -> None:
    def expected(block: Block) -> Block:
        return block._replace(output=block.output and block.output.replace(str(PORT), str(port)))

    assert [prints(expected(block), served) for block in GUIDE if block.note == "the server"] == [True]
    ran = [block for block in GUIDE if block.note == "beside the server"]
    assert len(ran) >= 6
    for block in ran:
        process = run(block.text.replace(str(PORT), str(port)), block.kind, folder)
        said, _ = process.communicate()
        assert process.returncode == 0, f"line {block.line}\n{said}"
        assert prints(expected(block), said), f"line {block.line} prints\n{said}"


def test_every_option_of_img2dataset_is_in_the_table() -> None:
    """Those of `img2dataset.download` of version 1.47.0."""
    options = """url_list image_size output_folder processes_count resize_mode resize_only_if_bigger
    upscale_interpolation downscale_interpolation
        encode_quality encode_format skip_reencode output_format input_format url_col caption_col bbox_col thread_count
        number_sample_per_shard extract_exif
        save_additional_columns timeout enable_wandb wandb_project oom_shard_count compute_hash verify_hash distributor
        subjob_size retries
        disable_all_reencoding min_image_size max_image_area max_aspect_ratio incremental_mode max_shard_retry
        user_agent_token
        disallowed_header_directives"""
    text = (ROOT / "docs" / "guides" / "fetch-from-the-web.md").read_text(encoding="utf-8")
    table = text[text.index("| img2dataset | altalign |") :]
    cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert sorted(set(options.split()) - set(re.findall(r"\w+", cells))) == []
