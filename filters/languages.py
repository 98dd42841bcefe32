"""The scripts that languages are written in, for a veto: a label whose language has another script is not believed.

By ISO 639 and the codes of Wikipedia, as lid.176 labels them. The scripts are Unicode's names. A language that is not
listed is never vetoed.
"""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters.scripts import NONE, main_scripts

_LANGUAGES = {
    "Latin": """af als an ast az bar bcl br bs ca cbk ceb co crh cs cy da de diq dsb eml en eo es et eu fi fr frr fy ga
        gd gl gn hr hsb ht hu ia id ie ig ilo io is it jbo jv ku kw la lb li lmo ln lt lv mg mi min ms mt mwl nah nap
        nds nl nn no nso oc pam pap pl pms pt qu rm ro sc scn sco se sh sk sl so sq sr st su sv sw tk tl tn tr ts tt uz
        vec vi vls vo wa war wo xh yo za zu""",
    "Cyrillic": """av az ba be bg bxr ce crh cv kk krc kv ky lez mhr mk mn mrj myv os ru rue sah sh sr tg tk tt tyv uk
        uz xal""",
    "Arabic": "ar arz az azb ckb fa kk ks ku mzn pa pnb ps sd ug ur",
    "Han": "ja ko wuu yue zh",
    "Hiragana": "ja",
    "Katakana": "ja",
    "Hangul": "ko",
    "Bopomofo": "zh",
    "Devanagari": "bh bho dty gom hi kok ks mai mr ne new sa sd",
    "Bengali": "as bn bpy",
    "Gurmukhi": "pa",
    "Gujarati": "gu",
    "Oriya": "or",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Thai": "th",
    "Lao": "lo",
    "Tibetan": "bo dz",
    "Myanmar": "my",
    "Khmer": "km",
    "Georgian": "ka xmf",
    "Armenian": "hy",
    "Greek": "el",
    "Hebrew": "he yi",
    "Ethiopic": "am ti",
    "Thaana": "dv",
    "Mongolian": "mn",
}
_SCRIPTS: dict[str, set[str]] = {}
for _script, _codes in _LANGUAGES.items():
    for _code in _codes.split():
        _SCRIPTS.setdefault(_code, set()).add(_script)


def is_vetoed(captions: pa.StringArray, labels: "pa.Array[Any]") -> npt.NDArray[np.bool_]:
    """Whether the main script of each of n captions is one that its language is not written in, bool[n].

    Captions without letters of a script, and languages that are not listed, are not vetoed.
    """
    scripts = main_scripts(captions)
    known: Any = pc.if_else(labels.is_valid(), labels, pa.scalar(""))
    languages = known.dictionary_encode()
    names, codes = cast(Any, scripts.dictionary).to_pylist(), languages.dictionary.to_pylist()
    is_other = np.array(
        [[name != NONE and code in _SCRIPTS and name not in _SCRIPTS[code] for name in names] for code in codes], bool
    ).reshape(len(codes), len(names))
    if not len(captions):
        return np.zeros(0, bool)
    return is_other[languages.indices.to_numpy(), scripts.indices.to_numpy()]
