"""Writes the demo web: a small pool with everything that a curation drops, and a test set for its decontamination.

A pool this small needs lower limits than the defaults of a curation: `VOCABULARY_SIZE` and `TEXTS_PER_IMAGE_AT_MOST`.
`pages.toml` has many ways to write the same image element, some of which are no element at all.
"""

import csv
import posixpath
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from PIL import Image, ImageEnhance

from altalign import terminal
from altalign.demo import archive, scenes
from altalign.demo.archive import Archive
from altalign.demo.draw import MEDIA_TYPES, bomb, draw, encode
from altalign.demo.scenes import Scene, random_scene

VOCABULARY_SIZE = 1_800  # so that what occurs once is rare: more n-grams than this occur twice, fewer three times
TEXTS_PER_IMAGE_AT_MOST = 20  # logos have twice as many

INDEX = "index.cdxj"
PAIRS = "pairs.csv"
_WRITTEN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("pages.toml").read_text(encoding="utf-8"))
BAD_REFERENCES: list[str] = _WRITTEN["bad_references"]
_WAYS: dict[str, tuple[float, str]] = _WRITTEN["forms"]
_ARCHIVES = 4
_TEST_IMAGES = 60
_LOGO_TEXTS = 40
_ENGLISH_SITES = 33
_SITES: dict[str, list[tuple[str, str, str]]] = _WRITTEN["sites"]
_WEIGHTS: dict[str, dict[str, float]] = _WRITTEN["weights"]
_SIDES_PX: dict[str, list[tuple[int, int]]] = _WRITTEN["sides_px"]
_NOT_FOUND, _SVG = (_WRITTEN["bodies"][name].encode() for name in ("not_found", "svg"))


@dataclass(frozen=True)
class Summary:
    """What a demo web holds."""

    pages: int  # HTML responses with status 200 that can be read
    image_elements: int  # in these pages
    images: int  # distinct URLs with a record of status 200
    broken_records: int
    test_images: int
    files: tuple[str, ...]  # the WARC files
    bytes: int  # of these


@dataclass(frozen=True)
class Element:
    """An image element: a valid absolute URL or a bad reference, its alt-text (None: no attribute), and its form."""

    url: str
    alt: str | None
    form: str

    @property
    def times(self) -> int:
        """How many image elements of a page it is."""
        return 2 if self.form == "lazy noscript" else 1


@dataclass
class _Picture:
    url: str
    scene: Scene
    captions: list[str] = field(default_factory=list)


@dataclass
class _Site:
    address: str
    language: str
    charset: str
    declared: str
    archive: Archive
    pictures: list[_Picture] = field(default_factory=list)
    logo: _Picture | None = None


def write(folder: Path, *, seed: int = 2021, pages_a_site: int = 50) -> Summary:
    """Write the demo web into `folder`: *.warc.gz, their index, pairs.csv, test-set/, README.md.

    The same arguments give the same bytes.
    """
    (folder / "test-set").mkdir(parents=True, exist_ok=True)
    web = _Web(folder, Random(seed))
    for number in terminal.followed(range(pages_a_site), "drawing", "parts"):
        for site in web.sites:
            web.write_page(site, number)
        if number == pages_a_site // 2:
            web.break_records("damaged", "nameless", "damaged")
    web.break_records("", "", "", "cut")  # where the file ends
    for place in web.archives:
        place.close()
    archive.write_index(folder / INDEX, [capture for place in web.archives for capture in place.captures])
    write_pairs(folder / PAIRS, web.pairs)
    names = tuple(place.name for place in web.archives)
    size = sum((folder / name).stat().st_size for name in names)
    summary = Summary(web.pages, web.elements, web.images, web.broken, len(web.test_set), names, size)
    limits = {"vocabulary_size": VOCABULARY_SIZE, "texts_per_image_at_most": TEXTS_PER_IMAGE_AT_MOST}
    readme = _WRITTEN["readme"].format(of=summary, seed=seed, index=INDEX, pairs=PAIRS, **limits)
    (folder / "README.md").write_text(readme, encoding="utf-8", newline="\n")
    return summary


class _Web:
    """The demo web while it is written, page after page, each with the images that it is the first to show."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self.rng = rng
        self.archives = [Archive(folder / f"demo-{number}.warc.gz") for number in range(_ARCHIVES)]
        english = [_SITES["english"][number % len(_SITES["english"])] for number in range(_ENGLISH_SITES)]
        self.sites = [
            _Site(
                f"{'https' if number % 3 else 'http'}://{kind[0]}-{number:02}.example",
                *kind,
                self.archives[number % _ARCHIVES],
            )
            for number, kind in enumerate([*english, *_SITES["others"]])
        ]
        self.pages = self.elements = self.images = self.broken = 0
        self.pairs: list[tuple[str, str, str]] = []
        for site in self.sites[:3]:
            site.logo = self._publish(site, "sound")
        # all of two shapes or more, and kept for their twins in the pool
        self.test_set: list[tuple[Scene, bytes, Image.Image]] = []
        for number in range(_TEST_IMAGES):
            scene = random_scene(rng, distinctive=True)
            image = draw(scene, rng.randint(300, 400), rng.randint(300, 400), rng)
            form, suffix = ("jpeg", "jpg") if number % 4 else ("png", "png")
            data = encode(image, form)
            (folder / "test-set" / f"{number:03}.{suffix}").write_bytes(data)
            self.test_set.append((scene, data, image))

    def write_page(self, site: _Site, number: int) -> None:
        """Write one page of a site, and what a crawler may find beside it."""
        url = f"{site.address}/{('', 'gallery/', 'a/b/')[number % 3]}page-{number}.html"
        elements = [self._element(site) for _ in range(self.rng.randint(1, 5))]
        if site.logo and number < _LOGO_TEXTS:
            caption = scenes.caption(random_scene(self.rng), "en", self.rng)
            elements.insert(0, Element(site.logo.url, caption, "plain"))
        meta = site.charset if site.declared == "meta" else ""
        text = html(url, site.language, f"Page {number}", elements, self.rng, meta_charset=meta)
        header = f"; charset={site.charset}" if site.declared == "header" else ""
        media_type = ("application/xhtml+xml" if number % 25 == 7 else "text/html") + header
        body, headers = text.encode(site.charset, "xmlcharrefreplace"), tuple[str, ...]()
        if self.rng.random() < 0.2:  # as a server may send it
            body, headers = archive.gzipped(body, level=9), ("Content-Encoding: gzip",)
        if self.rng.random() < 0.15:
            body, headers = archive.chunked(body), (*headers, "Transfer-Encoding: chunked")
        # some are captured twice
        places = [site.archive] if number % 10 else [site.archive, self.rng.choice(self.archives)]
        for place in places[: 2 if self.rng.random() < 0.15 else 1]:
            place.response(url, body, media_type, headers=headers)
            self.pages += 1
            self.elements += sum(element.times for element in elements)
            shown = [element for element in elements for _ in range(element.times)]
            self.pairs += [(each.url, each.alt, url) for each in shown if each.alt and each.url not in BAD_REFERENCES]
        place = site.archive
        if number % 20 == 0:
            place.request(url)
            old = f"{site.address}/old-{number}.html"
            place.response(old, b"", "text/html", status=301, headers=(f"Location: {url}",))
        if number % 20 == 5:
            place.response(f"{site.address}/gone-{number}.html", _NOT_FOUND, "text/html", status=404)
        if number == 0:
            place.response(f"{site.address}/robots.txt", b"User-agent: *\nDisallow:\n", "text/plain")
            place.response(f"{site.address}/style.css", b"p { color: black }\n", "text/css")
            place.resource(f"{site.address}/paper.pdf", b"%PDF-1.4\n%%EOF\n", "application/pdf")

    def break_records(self, *ways: str) -> None:
        """Add records that no reader can read, one to each archive, or none where the way is empty."""
        images = '<img src="/lost.jpg" alt="an image on a page that is lost">' * 20
        for number, (place, how) in enumerate(zip(self.archives, ways, strict=False)):
            if how:
                page = f"<title>Lost {self.rng.getrandbits(4000):x}</title>{images}".encode()
                place.broken(how, f"https://lost.example/{number}.html", page)
                self.broken += 1

    def _drawn(self, what: str) -> str:
        return self.rng.choices(list(_WEIGHTS[what]), list(_WEIGHTS[what].values()))[0]

    def _element(self, site: _Site) -> Element:
        kind = self._drawn("elements")
        is_new = kind == "new" or not site.pictures or (kind not in ("again", "repeated") and self.rng.random() < 0.2)
        picture = self._publish(site) if is_new else self.rng.choice(site.pictures[-30:])
        if is_new:
            site.pictures.append(picture)

        def caption() -> str:
            return scenes.caption(picture.scene, site.language, self.rng)

        if kind == "bad url":
            return Element(self.rng.choice(BAD_REFERENCES), caption(), "plain")
        alt = self._alt(kind, picture.captions, caption)
        if kind in ("new", "again"):
            picture.captions.append(alt or "")
        return Element(picture.url, alt, self.rng.choices(list(_WAYS), [weight for weight, _ in _WAYS.values()])[0])

    def _alt(self, kind: str, others: list[str], caption: Callable[[], str]) -> str | None:
        """The alt-text of an element of this kind; `others` are the captions that its picture has had."""
        match kind:
            case "alt missing" | "alt empty":
                return None if kind == "alt missing" else ""
            case "again":
                texts = [caption() for _ in range(4)]
                return next((text for text in texts if text not in others), texts[0])
            case "repeated" if others:
                return self.rng.choice(others)
            case "short":
                return scenes.short_text(self.rng)
            case "long":
                return scenes.long_text(caption)
            case "boilerplate":
                return self.rng.choice(scenes.BOILERPLATE)
            case "rare":
                return scenes.rare_text(caption(), self.rng)
            case _:
                return caption()

    def _publish(self, site: _Site, kind: str = "") -> _Picture:
        """A picture of a site, with the record of its image, if it has one."""
        common = site.language != "en"
        kind = kind or self._drawn("images")
        form = self._drawn("forms")
        scene = random_scene(self.rng, common=common)
        if kind == "twin" and not common:
            scene, data = self._twin()
        else:
            data = self._image_bytes("sound" if kind == "twin" else kind, scene, form)
        media_type = MEDIA_TYPES.get(form, f"image/{form}")
        number = self.rng.getrandbits(32)
        suffix = {"image/jpeg": "jpg"}.get(media_type, media_type.split("/")[1])
        name = f"{scene.groups[0].colour}-{scene.groups[0].shape}-{number:08x}.{suffix}"
        if site.language == "de":
            name = quote(f"größe-{name}")
        folder = self.rng.choice(("media", "media", "images/2021", "media//large"))
        host = site.address if self.rng.random() < 0.9 else "https://cdn.example"
        is_named = self.rng.random() >= 0.05
        url = f"{host}/{folder}/{name}" if is_named else f"{host}/photo?id={number}&size=large"
        place = site.archive if self.rng.random() < 0.9 else self.rng.choice(self.archives)
        if kind == "gone":
            place.response(url, _NOT_FOUND, "text/html", status=404)
        elif kind == "moved":
            place.response(url, b"", "text/html", status=301, headers=(f"Location: {url}.moved",))
        elif kind != "missing":
            self.images += 1
            (place.resource if self.rng.random() < 0.02 else place.response)(url, data, media_type)
            if self.rng.random() < 0.01:
                self.archives[-1].response(url, b"", media_type)  # a later capture; the first counts
        return _Picture(url, scene)

    def _image_bytes(self, kind: str, scene: Scene, form: str) -> bytes:
        match kind:
            case "sound" | "small" | "elongated":
                if kind == "sound" and self.rng.random() >= 0.02:
                    most = 480 if self.rng.random() < 0.05 else 320
                    sides = self.rng.randint(224, most), self.rng.randint(224, most)
                else:
                    sides = self.rng.choice(_SIDES_PX[kind])
                return encode(draw(scene, *sides, self.rng), form)
            case "damaged":
                data = encode(draw(scene, 256, 256, self.rng), self.rng.choice(("jpeg", "jpeg", "png", "gif")))
                return data[: int(len(data) * self.rng.uniform(0.3, 0.9))]
            case "undecodable":
                return self.rng.choice((_NOT_FOUND, _SVG, b"", b"image"))
            case "bomb":
                return bomb()
            case _:
                return b""

    def _twin(self) -> tuple[Scene, bytes]:
        """An image of the test set as others would have it: the same bytes, or the same picture."""
        scene, data, image = self.rng.choice(self.test_set)
        width, height = image.size
        cut = max(2, min(width, height) // 80)
        copies: tuple[Callable[[], bytes], ...] = (
            lambda: data,
            lambda: encode(image, "progressive"),
            lambda: encode(image, "webp"),
            lambda: encode(image.resize((width * 3 // 4, height * 3 // 4)), "jpeg"),
            lambda: encode(image.crop((cut, cut, width - cut, height - cut)), "jpeg"),
            lambda: encode(ImageEnhance.Brightness(image).enhance(1.12), "jpeg"),
            lambda: encode(ImageEnhance.Contrast(image).enhance(0.85), "jpeg"),
        )
        return scene, self.rng.choice(copies)()


def html(url: str, language: str, title: str, elements: list[Element], rng: Random, *, meta_charset: str = "") -> str:
    """The page at `url` with these elements."""
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}/media/" if rng.random() < 0.08 else ""
    head = f'<meta charset="{meta_charset}">' if meta_charset else ""
    head += f'<title>{escape(title)}</title><link rel=stylesheet href="/style.css">'
    head += f'<base href="{base}">' if base else ""
    body = [f"<h1>{escape(title)}</h1>"]
    for element in elements:
        text = _WAYS[element.form][1].format(s=_source(element.url, base or url, rng), a=_alt(element.alt, rng))
        body.append(rng.choice(("<p>{}", "<div>{}</div>", "<ul><li>{}</ul>", "<p>{}<br>")).format(text))
    if rng.random() < 0.3:
        body.insert(rng.randint(1, len(body)), rng.choice(_WRITTEN["decoys"]))
    page = f'<!DOCTYPE html>\n<html lang="{language}"><head>{head}</head>\n<body>\n'
    return page + "\n".join(body) + "\n</body></html>\n"


def _source(url: str, base: str, rng: Random) -> str:
    """A reference to the URL, one of those that resolve to it; escaped for an attribute."""
    if url in BAD_REFERENCES:
        return escape(url)
    to, at = urlsplit(url), urlsplit(base)
    references = [url, url.replace(to.scheme, to.scheme.upper(), 1), unquote(url)]
    if to.scheme == at.scheme:
        references.append(f"//{to.netloc}{to.path}")
        if to.netloc == at.netloc:
            references += [to.path, to.path]
            if "//" not in to.path:
                relative = posixpath.relpath(to.path, posixpath.dirname(at.path))
                references += [relative, relative, f"./{relative}"]
    reference = rng.choice(references)
    if to.query and "?" not in reference:
        reference += f"?{to.query}"
    return escape(reference + ("#top" if rng.random() < 0.03 else ""))


def _alt(alt: str | None, rng: Random) -> str:
    if alt is None:
        return ""
    if not alt.strip():
        return rng.choice((' alt=""', " alt", ' alt="  "', ' alt="&nbsp;"', ' ALT=""'))
    if rng.random() < 0.03:
        alt = alt.replace(" ", "\n   ", 1)  # white space is one space in a caption
    return f' alt="{escape(alt)}"' + (' title="Picture"' if rng.random() < 0.1 else "")


def write_pairs(path: Path, pairs: Iterable[tuple[str, str, str]]) -> None:
    """Write image URL, alt-text and page URL of image elements as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("url", "caption", "page_url"))
        rows.writerows(pairs)
