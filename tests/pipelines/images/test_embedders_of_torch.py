"""Embedders of open_clip and timm, small and with random weights made here; they need torch: `make test-readers`."""

import importlib.util
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from altalign import cli
from altalign.errors import AltalignError, UsageError
from altalign.pipelines.images import embedders
from tests.pipelines.images.embedding import FLAT, IMAGE, OTHER, check_same_whoever_asks, cosine, features
from tests.support.pictures import encoded

ROOT = Path(__file__).parents[3]

needs_torch = pytest.mark.skipif(
    not (importlib.util.find_spec("open_clip") and importlib.util.find_spec("timm")),
    reason="open_clip and timm, which bring torch: make test-readers",
)

SMALL_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32},
    "text_cfg": {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1},
}
TIMM = "vit_tiny_patch16_224"


@pytest.fixture
def clip(tmp_path: Path) -> str:
    """A name of a small model that open_clip knows."""
    import open_clip

    path = tmp_path / "small-of-tests.json"
    path.write_text(json.dumps(SMALL_CLIP))
    open_clip.add_model_config(path)
    return path.stem


def random_clip(name: str) -> Any:
    import open_clip
    import torch

    torch.manual_seed(3)
    return open_clip.create_model(name, load_weights=False).eval()


def random_timm(**kwargs: Any) -> Any:
    import timm
    import torch

    torch.manual_seed(3)
    return timm.create_model(TIMM, **kwargs).eval()


def save_torch(path: Path, value: Any) -> Path:
    import torch

    torch.save(value, path)
    return path


def save_safetensors(path: Path, value: Any) -> Path:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in value.items()}, path)
    return path


SAVED: dict[str, Callable[[Path, Any], Path]] = {
    "a.safetensors": save_safetensors,
    "a.pt": save_torch,
    "training.pt": lambda path, value: save_torch(
        path, {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in value.items()}}
    ),
}


@needs_torch
@pytest.mark.parametrize("file", SAVED)
def test_open_clip_gives_what_its_model_says_of_the_image(tmp_path: Path, clip: str, file: str) -> None:
    import open_clip
    import torch

    model = random_clip(clip)
    embedder = embedders.load(f"open_clip:{clip}:{SAVED[file](tmp_path / file, model.state_dict())}")
    transform = open_clip.image_transform(
        32, is_train=False, mean=open_clip.OPENAI_DATASET_MEAN, std=open_clip.OPENAI_DATASET_STD
    )
    with torch.inference_mode():
        expected = model.encode_image(transform(Image.fromarray(IMAGE))[None])[0].numpy()
    assert cosine(features(embedder, IMAGE), expected) > 0.999999
    assert (embedder.dimensions, embedder.colour, embedder.short_side_px) == (24, True, 32)
    assert embedder.features(FLAT) is None
    assert not np.array_equal(features(embedder, IMAGE), features(embedder, OTHER))
    check_same_whoever_asks(embedder)


@needs_torch
@pytest.mark.parametrize("file", SAVED)
@pytest.mark.parametrize("classes", [1000, 7, 0])
def test_timm_gives_what_its_model_says_before_its_classifier(tmp_path: Path, file: str, classes: int) -> None:
    import timm.data
    import torch

    model = random_timm(num_classes=classes)
    embedder = embedders.load(f"timm:{TIMM}:{SAVED[file](tmp_path / file, model.state_dict())}")
    transform: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.inference_mode():
        expected = model.forward_head(model.forward_features(transform(Image.fromarray(IMAGE))[None]), pre_logits=True)[
            0
        ].numpy()
    assert cosine(features(embedder, IMAGE), expected) > 0.999999
    assert (embedder.dimensions, embedder.colour, embedder.short_side_px) == (192, True, 248)
    if classes == 7:
        check_same_whoever_asks(embedder)


@needs_torch
def test_images_are_prepared_as_all_published_weights_of_a_model_want_it() -> None:
    import open_clip

    from altalign.models import torch_models

    siglip = torch_models._preprocessing(open_clip, "ViT-B-16-SigLIP")
    assert (siglip["mean"], siglip["std"], siglip["resize_mode"]) == ((0.5,) * 3, (0.5,) * 3, "squash")
    assert torch_models._preprocessing(open_clip, "ViT-L-14") == {}  # they differ
    assert torch_models._preprocessing(open_clip, "no model") == {}


@needs_torch
def test_weights_of_another_model_are_refused(tmp_path: Path, clip: str) -> None:
    of_clip, of_timm = (
        save_safetensors(tmp_path / f"{model}.safetensors", weights())
        for model, weights in (("clip", random_clip(clip).state_dict), ("timm", random_timm().state_dict))
    )
    with pytest.raises(
        UsageError,
        match=rf"timm:{TIMM}:.*clip\.safetensors: weights of another model \([\d,]+ do not fit, such as \w",
    ):
        embedders.load(f"timm:{TIMM}:{of_clip}")
    with pytest.raises(UsageError, match=rf"open_clip:{clip}:.*cannot be opened \(.*Missing key"):
        embedders.load(f"open_clip:{clip}:{of_timm}")
    import timm

    deeper = save_safetensors(tmp_path / "deeper.safetensors", timm.create_model(TIMM, depth=13).state_dict())
    with pytest.raises(
        UsageError, match=r"deeper\.safetensors: weights of another model \(12 do not fit, such as blocks\.12"
    ):
        embedders.load(f"timm:{TIMM}:{deeper}")
    half = dict(list(random_timm().state_dict().items())[:40])
    with pytest.raises(UsageError, match=r"half\.safetensors: weights of another model"):
        embedders.load(f"timm:{TIMM}:{save_safetensors(tmp_path / 'half.safetensors', half)}")


class Evil:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@needs_torch
@pytest.mark.parametrize("model", ["open_clip:ViT-S-32", f"timm:{TIMM}"])
def test_no_code_of_a_checkpoint_is_run(tmp_path: Path, model: str) -> None:
    trace = tmp_path / "code was run"
    save_torch(tmp_path / "evil.pt", {"state_dict": {"a": Evil(trace)}})
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"a": Evil(trace)}))
    for name in ("evil.pt", "old.pt"):
        with pytest.raises(
            UsageError,
            match=rf"{name} cannot be read as weights \(.*\); give safetensors, or a state_dict that torch\.save wrote",
        ):
            embedders.load(f"{model}:{tmp_path / name}")
    assert not trace.exists()
    pickle.loads((tmp_path / "old.pt").read_bytes())
    assert trace.exists()  # so the files were as evil as they should be


@needs_torch
@pytest.mark.parametrize("model", ["open_clip:ViT-S-32", f"timm:{TIMM}"])
@pytest.mark.parametrize(
    ("name", "data"),
    [("a.pt", b"no weights"), ("a.pt", b""), ("a.safetensors", b"no weights at all"), ("a.npz", b"PK")],
)
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, model: str, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(
        UsageError,
        match=rf'^\[decontaminate\] embedder = "{model}:.*{name}'
        r'(": cannot be opened| cannot be read as weights| is an array of NumPy).*$',
    ):
        embedders.load(f"{model}:{tmp_path / name}")


@needs_torch
@pytest.mark.parametrize("model", ["open_clip:ViT-B-33", "timm:resnet51", "open_clip:\N{SNOWMAN}"])
def test_an_unknown_model_is_named(model: str) -> None:
    with pytest.raises(UsageError, match=r"no model of that name; the library has [\d,]+, such as "):
        embedders.load(f"{model}:a.pt")


@needs_torch
def test_weights_that_overflow_are_refused_when_they_are_loaded(tmp_path: Path) -> None:
    import torch

    weights = {name: torch.full_like(tensor, torch.inf) for name, tensor in random_timm().state_dict().items()}
    with pytest.raises(UsageError, match="equal, empty or not finite"):
        embedders.load(f"timm:{TIMM}:{save_safetensors(tmp_path / 'a.safetensors', weights)}")


@needs_torch
def test_features_that_are_not_finite_later_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    import torch

    path = save_safetensors(tmp_path / "a.safetensors", random_timm().state_dict())
    embedder = embedders.load(f"timm:{TIMM}:{path}")
    monkeypatch.setattr(
        timm.models.VisionTransformer, "forward", lambda _, images: torch.full((len(images), 192), torch.nan)
    )
    with pytest.raises(
        AltalignError, match=r"timm:.*: what the model makes of an image cannot be compared: .* not finite"
    ):
        embedder.features(IMAGE)


@needs_torch
def test_nothing_is_asked_of_the_web() -> None:
    code = """
from altalign.errors import UsageError
from altalign.pipelines.images import embedders
try:
    embedders.load("open_clip:ViT-B-32:nowhere.pt")
except UsageError:
    from huggingface_hub import constants
    print(constants.HF_HUB_OFFLINE)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


@needs_torch
def test_a_model_works_on_one_thread_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    import torch

    embedder = embedders.load(f"timm:{TIMM}:{save_safetensors(tmp_path / 'a.safetensors', random_timm().state_dict())}")
    forward, seen = timm.models.VisionTransformer.forward, []

    def watched(model: Any, batch: Any) -> Any:
        seen.append((torch.get_num_threads(), torch.is_inference_mode_enabled(), model.training, len(batch)))
        return forward(model, batch)

    monkeypatch.setattr(timm.models.VisionTransformer, "forward", watched)
    torch.set_num_threads(2)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(torch.set_num_threads, 2).result()
        threads.submit(embedder.features, IMAGE).result()
    embedder.features(IMAGE)
    assert seen == [(1, True, False, 1)] * 2


@needs_torch
@pytest.mark.runs
def test_a_run_with_a_model_drops_copies_of_test_images(tmp_path: Path, clip: str) -> None:
    """A copy of a test image in another format goes, others stay; and one worker leaves what two do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = save_safetensors(tmp_path / "a.safetensors", random_clip(clip).state_dict())
    rng = np.random.default_rng(7)
    drawn = [
        Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((260, 240), Image.Resampling.NEAREST)
        for _ in range(20)
    ]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "test.png").write_bytes(encoded(drawn[4], "png"))
    rows = {"image": [encoded(image, "jpeg") for image in drawn], "caption": ["some squares of many colours"] * 20}
    pq.write_table(pa.table(rows), tmp_path / "pool.parquet")
    left = []
    for workers in (1, 2):
        folder = tmp_path / f"run-{workers}"
        config = tmp_path / "mine.toml"
        config.write_text(
            f"""
            run.folder = "{folder}"
            engine.workers = {workers}
            input = [{{kind = "table", paths = ["{tmp_path}/pool.parquet"], url_column = "", image_column = "image"}}]
            text.images_per_text_at_most = 100
            decontaminate.test_sets = ["{tmp_path}/set"]
            decontaminate.embedder = "open_clip:{clip}:{path}"
            decontaminate.similarity_above = 0.999
            decontaminate.require_bucket = false
            """
        )
        assert cli.main(["curate", str(config)]) == 0
        dropped = pq.read_table(folder / "dropped" / "decontaminate").to_pylist()
        assert [(row["test_set"], row["test_image"]) for row in dropped] == [("set", "test.png")]
        left.append({file.name: file.read_bytes() for file in (folder / "shards").iterdir()})
    assert left[0] == left[1]
