"""Hypothesis strategies for captions and pools as nasty as the web, and small enough for every rule to bite."""

from hypothesis import strategies as st

from tests.reference.curation import Candidate, ImageFacts, Settings

# One entry a trap of the rules of section 3.
LATIN = [
    "dog",
    "Dog",
    "DOG",
    "a",
    "of",
    "the",
    "café",
    "cafe\u0301",
    "CAFE\u0301",
    "ﬁ",
    "straße",
    "ẞ",
    "ǅ",
    "ŉ",
    "x2",
    "42",
    "1st",
    "½",
    "Ⅷ",
    "ⅷ",
    "Ⓐ",
    "²",
]
TURKISH_AND_GREEK = ["İ", "i\u0307", "ı", "I", "Σ", "ΟΔΟΣ", "οδος", "ς", "ᾳ", "Ὀδυσσεύς"]
CASE = ["\u212a", "\u212b", "\u2126", "\ua7cb", "\ua7dc", "\u1c89", "\U00010d50", "\U0001e921", "Ჿ", "Ꭰ", "ꭰ"]
APOSTROPHES = [
    "'",
    "’",
    "''",
    "'’",
    "don't",
    "DON’T",
    "rock'n'roll",
    "'tis",
    "dogs'",
    "5'a",
    "a'5",
    "a_'b",
    "e\u0301’a",
    "\u0301'a",
    "o\u02bco",
]
APOSTROPHES_AND_NOT = ["`", "＇", "\u2018", "a\u200d'\u00adb", "a\u200b'b", "l'", "d’\u00e9t\u00e9"]
CONNECTORS = ["_", "__", "a_b", "_a", "snake_case_1", "‿", "-", "–", "/", ".", "·", "a·b", "3.5"]
MARKS = [
    "\u0301",
    "\u0301\u0301",
    "\u20e3",
    "\ufe0f",
    "\U000e0100",
    "\u0345",
    "\u0f71",
    "\u3099",
    "\u094d",
    "q\u0323\u0307",
    "q\u0307\u0323",
]
FORMAT = ["\u00ad", "\u200c", "\u200d", "\u2060", "\ufeff", "\u200e", "\u202e", "\u0600", "\U000e0041", "\u200b"]
SPACES = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\xa0",
    "\u2000",
    "\u2003",
    "\u202f",
    "\u3000",
    "\u2028",
    "\u2029",
    "\x85",
    "\u1680",
    "\v",
    "\f",
]
CONTROLS = ["\x00", "\x01", "\x08", "\x1b", "\x1c", "\x1d", "\x1e", "\x1f", "\x7f", "\x80", "\x9f"]
EMOJI = [
    "👍🏽",
    "👩\u200d👩\u200d👧",
    "❤\ufe0f",
    "❤\ufe0fa",
    "1\ufe0f\u20e3",
    "🇩🇪",
    "🏴\U000e0067\U000e0062\U000e007f",
    "☃",
    "→",
]
ALONE = [
    "漢",
    "漢字",
    "人々",
    "々",
    "〇",
    "三",
    "コーヒー",
    "ー",
    "ｶﾞ",
    "が",
    "か\u3099",
    "ゝ",
    "ヽ",
    "・",
    "葛\U000e0100",
    "\uf900",
    "𠮷",
]
ALONE_AND_NOT = [
    "⼀",
    "㈠",
    "漢ʰ",
    "漢_",
    "_漢",
    "漢'a",
    "a'漢",
    "漢e\u0301'a",
    "aー",
    "ーa",
    "aヽ",
    "漢\u200d\u0301",
    "漢\u200b\u0301",
]
SOUTH_EAST = [
    "ภาษาไทย",
    "ก\u0e31",
    "\u0e31",
    "aั",
    "ๆ",
    "๑๒",
    "น\u0e49ำ",
    "ລາວ",
    "ខ្មែរ",
    "ខ្មែរ\u200bភាសា",
    "မြန်မာ",
    "བོད་ཡིག",
    "༡༢",
    "ꩠ",
]
OTHER = ["हिन्दी", "العربيّة", "ـ", "שָׁלוֹם", "한국어", "\u1112\u1161\u11ab", "ᄒ", "Ελληνικά", "Привет", "ქართული", "𝒳"]
# some of these are letters, but not in Unicode 16.0
UNKNOWN = ["\u0378", "\ufdd0", "\ufffd", "\U0010ffff", "\ue000", "\u1c8c", "\ua7dd", "\ua7ce"]
ENTITIES = [
    "&amp;",
    "&amp;amp;",
    "&lt;b&gt;",
    "&nbsp;",
    "&copy",
    "&copy=1",
    "&notit;",
    "&not",
    "&NotEqualTilde;",
    "&",
    "&;",
]
REFERENCES = [
    "&#39;",
    "&#x2019;",
    "&#0;",
    "&#x110000;",
    "&#150;",
    "&#xD800;",
    "&#",
    "&#x",
    "&#xg",
    "&#38;amp;",
    "&#9;",
    "&#28;",
]
LONG = [
    "a" * 300,
    "a\u0301" * 70,
    "漢" * 25,
    "é" * 33,
    "x'" * 40 + "x",
    "Ⱥ" * 9,
    *("abcdefghijklmnopq"[:n] for n in (7, 8, 9, 15, 16, 17)),
]

WORDS = [*LATIN, *TURKISH_AND_GREEK, *CASE, *APOSTROPHES, *APOSTROPHES_AND_NOT, *CONNECTORS, *OTHER]
SIGNS = [*MARKS, *FORMAT, *CONTROLS, *EMOJI, *UNKNOWN, *ENTITIES, *REFERENCES]
SINGLES = [*ALONE, *ALONE_AND_NOT, *SOUTH_EAST]
PIECES = [*WORDS, *SIGNS, *SINGLES]

TRUSTED_URLS = [
    "http://a.example/1.jpg",
    "http://a.example/2.jpg",
    "https://a.example/1.jpg",
    "http://b.example/?q=1&r=2",
]
URLS = [
    *TRUSTED_URLS,
    "http://a.example/1.jpg#top",
    "http://a.example/1.jpg#",
    " http://a.example/1.jpg\n",
    "\u3000http://a.example/2.jpg\xa0",
    "http://a.example/ 1.jpg",
    "http://a.example/1.jpg #x",
    "HTTP://A.example/1.jpg",
    "http://a.example:80/1.jpg",
    "http://bücher.example/ü.jpg",
    "http://xn--bcher-kva.example/%C3%BC.jpg",
    "http://[::1]/1.jpg",
    "http://[::1/1.jpg",
    "http://1.2.3.4.5/x",
    "http://a b.example/",
    "http://",
    "http:a.example",
    "http:\\\\a.example\\1.jpg",
    "http://a.example/\t1.jpg",
    "//a.example/1.jpg",
    "/1.jpg",
    "1.jpg",
    "ftp://a.example/1.jpg",
    "data:image/gif;base64,R0lGODlhAQABAAAAACw=",
    "javascript:void(0)",
    "#top",
    "",
    " ",
    "\ufeffhttp://a.example/1.jpg",
    None,
]
PAGE_URLS = [
    None,
    "",
    "http://p.example/",
    "http://p.example/z",
    "http://p.example/\uff5e",
    "http://p.example/\U0001f600",
    "http://P.example/",
]
SHA256S = [f"{digit:064x}" for digit in (1, 2)]


def nasty_captions() -> st.SearchStrategy[str]:
    """Raw captions: traps and spaces in any order, and arbitrary text."""
    mixed = st.lists(st.sampled_from(PIECES) | st.sampled_from(SPACES) | st.sampled_from(LATIN), max_size=12).map(
        "".join
    )
    spaced = st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join)
    long = st.lists(st.sampled_from(LONG + SPACES + APOSTROPHES), max_size=6).map("".join)
    scripts = st.lists(st.sampled_from(SINGLES + MARKS + FORMAT + ["'", "’", "a", "_", "ʰ"]), max_size=10).map("".join)
    return st.one_of(mixed, spaced, long, scripts, st.text(max_size=30))


def pool_captions() -> st.SearchStrategy[str | None]:
    """Raw captions of few words, so that n-grams, texts and pairs repeat; now and then a nasty one, or null."""
    few = st.lists(st.sampled_from(["dog", "Dog", "cat", "on", "a", "mat", "’s", "漢"]), max_size=5).map(" ".join)
    alike = st.sampled_from(
        ["a dog", "A  dog", "a\xa0DOG ", "a\u00ad dog", "cafe\u0301 au lait", "café au lait", "", " \t", "\x01", "-"]
    )
    return st.one_of(few, alike, few, nasty_captions(), st.none())


@st.composite
def pools(draw: st.DrawFn, *, kind: str = "table", max_size: int = 30) -> list[Candidate]:
    """Candidates of a pool in input order, of two sources; those of pages (`kind` warc or wat) have resolved URLs and
    no image in hand.
    """
    page = kind in ("warc", "wat")
    urls = draw(
        st.lists(
            st.sampled_from(TRUSTED_URLS) | st.sampled_from(TRUSTED_URLS if page else URLS), min_size=1, max_size=6
        )
    )
    captions = draw(st.lists(pool_captions(), min_size=1, max_size=8))
    return [
        Candidate(
            image_url=draw(st.sampled_from(urls)),
            caption_raw=draw(st.sampled_from(captions)),
            page_url=draw(st.sampled_from(PAGE_URLS)),
            source=draw(st.sampled_from(["north", "south"])),
            position=position,
            image_sha256=None if page else draw(st.none() | st.sampled_from(SHA256S)),
            kind=kind,
        )
        for position in range(draw(st.integers(0, max_size)))
    ]


def small_settings() -> st.SearchStrategy[Settings]:
    """Settings whose limits a small pool crosses."""
    at_least, spread = st.integers(0, 2), st.integers(0, 6)
    return st.builds(
        lambda least, more, **rest: Settings(words_at_least=least, words_at_most=least + more, **rest),
        at_least,
        spread,
        images_per_text_at_most=st.integers(0, 2) | st.just(10),
        vocabulary_size=st.integers(1, 8) | st.integers(3, 20) | st.just(10_000),
        texts_per_image_at_most=st.integers(0, 4) | st.just(10),
        short_side_above_px=st.integers(0, 5),
        aspect_ratio_below=st.sampled_from([1.1, 1.5, 2.1, 3.0]),
        pixels_at_most=st.integers(1, 100) | st.just(1000),
        blocked_hashes=st.frozensets(st.sampled_from(SHA256S)),
        nsfw_at_or_above=st.none() | st.just(0.5),
    )


def image_facts() -> st.SearchStrategy[ImageFacts]:
    """What images of a few pixels are like: damaged, of no format, blocked, or sound."""
    side = st.integers(1, 12) | st.integers(9, 12)
    known = st.builds(
        ImageFacts,
        format=st.sampled_from(["jpg", "png", "gif"]),
        width=side,
        height=side,
        damaged=st.booleans(),
        hashes=st.frozensets(st.sampled_from(SHA256S), max_size=1),
        nsfw_score=st.none() | st.sampled_from([0.25, 0.5, 0.75]),
    )
    return known | st.builds(ImageFacts, format=st.none(), hashes=st.frozensets(st.sampled_from(SHA256S), max_size=1))
