"""Captions in languages other than English, of scenes with common shapes, colours and places (`common=True`).

One function a language, for each has its own agreement; each says a scene in a few phrasings.
"""

from collections.abc import Callable, Mapping
from random import Random

from altalign.demo.scenes import COMMON_COLOURS, COMMON_PLACES, COMMON_SHAPES, Group, Scene


def _table(keys: tuple[str, ...], values: str) -> dict[str, list[str]]:
    """Entries are separated by commas, the forms of one by blanks."""
    return dict(zip(keys, (entry.split() for entry in values.split(",")), strict=True))


def _phrases(keys: tuple[str, ...], values: str) -> dict[str, str]:
    return dict(zip(keys, (entry.strip() for entry in values.split(",")), strict=True))


# Shapes: gender, singular, plural (Russian also: after 2 to 4, after 5; its plural is not used).
_DE_SHAPES = _table(
    COMMON_SHAPES, "er Kreis Kreise, es Quadrat Quadrate, es Dreieck Dreiecke, er Stern Sterne, es Herz Herzen"
)
_DE_COLOURS = _phrases(COMMON_COLOURS, "rot, blau, grün, gelb, weiß, schwarz")
_DE_PLACES = _phrases(COMMON_PLACES, "in der Mitte, oben, unten, links, rechts")
_FR_SHAPES = _table(
    COMMON_SHAPES, "m cercle cercles, m carré carrés, m triangle triangles, f étoile étoiles, m cœur cœurs"
)
_FR_COLOURS = _table(COMMON_COLOURS, "rouge rouge, bleu bleue, vert verte, jaune jaune, blanc blanche, noir noire")
_FR_PLACES = _phrases(COMMON_PLACES, "au centre, en haut, en bas, à gauche, à droite")
_ES_SHAPES = _table(
    COMMON_SHAPES,
    "m círculo círculos, m cuadrado cuadrados, m triángulo triángulos, f estrella estrellas, m corazón corazones",
)
_ES_COLOURS = _table(
    COMMON_COLOURS,
    "rojo roja rojos rojas, azul azul azules azules, verde verde verdes verdes, "
    "amarillo amarilla amarillos amarillas, blanco blanca blancos blancas, negro negra negros negras",
)
_ES_PLACES = _phrases(COMMON_PLACES, "en el centro, arriba, abajo, a la izquierda, a la derecha")
_RU_SHAPES = _table(
    COMMON_SHAPES,
    "m круг круга кругов, m квадрат квадрата квадратов, m треугольник треугольника треугольников, "
    "f звезда звезды звёзд, n сердце сердца сердец",
)
# Colours: masculine, feminine, neuter, nominative plural, genitive plural, prepositional masculine.
_RU_COLOURS = _table(
    COMMON_COLOURS,
    "красный красная красное красные красных красном, синий синяя синее синие синих синем, "
    "зелёный зелёная зелёное зелёные зелёных зелёном, жёлтый жёлтая жёлтое жёлтые жёлтых жёлтом, "
    "белый белая белое белые белых белом, чёрный чёрная чёрное чёрные чёрных чёрном",
)
_RU_PLACES = _phrases(COMMON_PLACES, "в центре, вверху, внизу, слева, справа")
_JA_SHAPES = _phrases(COMMON_SHAPES, "丸, 四角, 三角, 星, ハート")
_JA_COLOURS = _phrases(COMMON_COLOURS, "赤い, 青い, 緑の, 黄色い, 白い, 黒い")
_JA_PLACES = _phrases(COMMON_PLACES, "中央, 上, 下, 左, 右")
_ZH_SHAPES = _phrases(COMMON_SHAPES, "圆形, 正方形, 三角形, 五角星, 心形")
_ZH_COLOURS = _phrases(COMMON_COLOURS, "红色, 蓝色, 绿色, 黄色, 白色, 黑色")
_ZH_PLACES = _phrases(COMMON_PLACES, "中间, 上方, 下方, 左边, 右边")


def _german(scene: Scene, rng: Random) -> str:
    def noun(group: Group, *, article: bool = True) -> str:
        ending, singular, plural = _DE_SHAPES[group.shape]
        colour = _DE_COLOURS[group.colour]
        if group.count > 1:
            return f"{('zwei', 'drei', 'vier', 'fünf')[group.count - 2]} {colour}e {plural}"
        return f"{'ein ' if article else ''}{colour}{ending} {singular}"

    return _say(scene, rng, noun, _DE_PLACES, f"auf {_DE_COLOURS[scene.ground]}em Grund", "und", "Bild: ")


def _french(scene: Scene, rng: Random) -> str:
    def noun(group: Group, *, article: bool = True) -> str:
        gender, singular, plural = _FR_SHAPES[group.shape]
        colour = _FR_COLOURS[group.colour][gender == "f"]
        if group.count > 1:
            return f"{('deux', 'trois', 'quatre', 'cinq')[group.count - 2]} {plural} {colour}s"
        return f"{('un ', 'une ')[gender == 'f'] if article else ''}{singular} {colour}"

    return _say(scene, rng, noun, _FR_PLACES, f"sur fond {_FR_COLOURS[scene.ground][0]}", "et", "image : ")


def _spanish(scene: Scene, rng: Random) -> str:
    def noun(group: Group, *, article: bool = True) -> str:
        gender, singular, plural = _ES_SHAPES[group.shape]
        colour = _ES_COLOURS[group.colour][(gender == "f") + 2 * (group.count > 1)]
        if group.count > 1:
            return f"{('dos', 'tres', 'cuatro', 'cinco')[group.count - 2]} {plural} {colour}"
        return f"{('un ', 'una ')[gender == 'f'] if article else ''}{singular} {colour}"

    return _say(scene, rng, noun, _ES_PLACES, f"sobre fondo {_ES_COLOURS[scene.ground][0]}", "y", "imagen: ")


def _russian(scene: Scene, rng: Random) -> str:
    def noun(group: Group, *, article: bool = True) -> str:  # noqa: ARG001 (Russian has none)
        gender, singular, few, many = _RU_SHAPES[group.shape]
        colours = _RU_COLOURS[group.colour]
        if group.count == 1:
            return f"{colours['mfn'.index(gender)]} {singular}"
        if group.count == 5:
            return f"пять {colours[4]} {many}"
        two = "две" if gender == "f" else "два"
        return f"{(two, 'три', 'четыре')[group.count - 2]} {colours[3 if gender == 'f' else 4]} {few}"

    return _say(scene, rng, noun, _RU_PLACES, f"на {_RU_COLOURS[scene.ground][5]} фоне", "и", "рисунок: ")


def _say(
    scene: Scene, rng: Random, noun: Callable[..., str], places: Mapping[str, str], on: str, and_: str, title: str
) -> str:
    """The phrasings that these European languages share."""
    first = noun(scene.groups[0])
    if len(scene.groups) == 2:
        second = noun(scene.groups[1])
        return rng.choice(
            (f"{first} {and_} {second}", f"{first} {and_} {second} {on}", f"{title}{second} {and_} {first}")
        )
    if scene.groups[0].count > 1:
        return rng.choice((first, f"{first} {on}", f"{title}{first}"))
    place = places[scene.arrangement]
    return rng.choice(
        (
            f"{first} {on}",
            f"{first} {on}, {place}",
            f"{noun(scene.groups[0], article=False)}, {place}",
            f"{title}{first} {on}",
        )
    )


def _japanese(scene: Scene, rng: Random) -> str:
    nouns = [_JA_COLOURS[group.colour] + _JA_SHAPES[group.shape] for group in scene.groups]
    ground = f"{_JA_COLOURS[scene.ground]}背景"
    if len(nouns) == 2:
        return rng.choice(("{0}と{1}", "{1}と{0}の絵", "{2}に{0}と{1}")).format(*nouns, ground)
    if scene.groups[0].count > 1:
        count = ("二つ", "三つ", "四つ", "五つ")[scene.groups[0].count - 2]
        return rng.choice(("{0}が{1}", "{2}に{0}が{1}", "{1}の{0}")).format(nouns[0], count, ground)
    return rng.choice(("{1}に{0}", "{2}に{0}", "{1}の{2}に{0}があります", "{0}の絵")).format(
        nouns[0], ground, _JA_PLACES[scene.arrangement]
    )


def _chinese(scene: Scene, rng: Random) -> str:
    nouns = [f"{_ZH_COLOURS[group.colour]}的{_ZH_SHAPES[group.shape]}" for group in scene.groups]
    ground = f"{_ZH_COLOURS[scene.ground]}背景"
    if len(nouns) == 2:
        return rng.choice(("{0}和{1}", "{2}上的{0}和{1}", "图片:{1}和{0}")).format(*nouns, ground)
    if scene.groups[0].count > 1:
        count = "两三四五"[scene.groups[0].count - 2]
        return rng.choice(("{1}个{0}", "{2}上有{1}个{0}", "图片:{1}个{0}")).format(nouns[0], count, ground)
    return rng.choice(("{1}上的{0}", "{2}有一个{0}", "{1},{2}有一个{0}", "图片:{0}")).format(
        nouns[0], ground, _ZH_PLACES[scene.arrangement]
    )


LANGUAGES: Mapping[str, Callable[[Scene, Random], str]] = {
    "de": _german,
    "fr": _french,
    "es": _spanish,
    "ru": _russian,
    "ja": _japanese,
    "zh": _chinese,
}
