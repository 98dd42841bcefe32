"""Personal data in captions: e-mail addresses, phone numbers and street addresses, as kept libraries find them.

Only what is written in full counts, so that dates, prices, names of files and numbers of products do not: a bare row of
digits is no phone number, and a street without house number and postal code no address. Rates are rather too low.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters.one_url import registered_domain
from altalign.settings.curate import TextSettings

KINDS = {"email": "e-mail address", "phone": "phone number", "address": "street address"}
CHARACTERS = 1_000  # of a caption that are looked at: the libraries take time with longer texts

_COUNTRIES_OF_ADDRESSES = ("US", "CA", "GB")  # all that pyap2 knows
# What a caption has with personal data of a kind, by RE2, the cheapest first; the libraries are asked about no other.
_SIGNS = {
    "email": ("@",),
    "phone": (
        r"[+＋]\p{Nd}|\p{Nd}[^\p{L}\p{Nd}]{1,4}\p{Nd}",  # not a bare row of digits
        r"\p{Nd}(?:[^\p{L}\p{Nd}]{0,4}\p{Nd}){6}",
    ),
    # a number, a name, and a postal code of the US, Canada or the UK
    "address": (
        r"[0-9]",
        r"[0-9].*[A-Za-z]{2}.*(\b[0-9]{5}|[A-Z][0-9][A-Z] ?[0-9][A-Z][0-9]|[A-Z][0-9][0-9A-Z]? ?[0-9][A-Z]{2})\b",
    ),
}
# A valid e-mail address of HTML (Living Standard, 4.10.5.1.5), but that its domain has a dot.
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_EMAIL = re.compile(rf"[a-zA-Z0-9.!#$%&'*+/=?^_`{{|}}~-]+@({_LABEL}(?:\.{_LABEL})+)")

Mask = npt.NDArray[np.bool_]  # bool[n]


def found(captions: pa.StringArray, kinds: Iterable[str], countries: Sequence[str]) -> Mapping[str, Mask]:
    """Whether each of n captions without nulls has personal data of each kind (`KINDS`): bool[n] by kind.

    International phone numbers are those of all countries, national ones of these (ISO 3166).
    """
    begun: Any = pc.utf8_slice_codeunits(captions, 0, CHARACTERS)
    masks = dict[str, Mask]()
    for kind in kinds:
        rows = np.arange(len(captions))
        for sign in _SIGNS[kind]:
            has_sign = pc.match_substring_regex(begun.take(rows), sign)
            rows = rows[has_sign.to_numpy(zero_copy_only=False)]
        masks[kind] = np.zeros(len(captions), bool)
        if len(rows):
            masks[kind][rows] = [*map(_TESTS[kind](tuple(countries)), begun.take(rows).to_pylist())]
    return masks


def has_any(captions: pa.StringArray, settings: TextSettings) -> pa.BooleanArray:
    """Whether each of n captions without nulls has what `drop_personal` names, as `found`: bool[n]."""
    masks = found(captions, settings.drop_personal, settings.phone_countries).values()
    return pa.array(reduce(np.logical_or, masks, np.zeros(len(captions), bool)))


def _email_test(_countries: Sequence[str]) -> Callable[[str], bool]:
    return lambda text: any(map(registered_domain, _EMAIL.findall(text)))


def _phone_test(countries: Sequence[str]) -> Callable[[str], bool]:
    from phonenumbers import Leniency, PhoneNumberMatcher  # a twelfth of a second

    # grouped as its country groups them: any other leniency takes ISBNs and sizes for phone numbers
    numbers = partial(PhoneNumberMatcher, leniency=Leniency.EXACT_GROUPING)

    def test(text: str) -> bool:
        of_all = (number for country in countries or (None,) for number in numbers(text, country))
        return any(not number.raw_string.lstrip("(").isdigit() for number in of_all)

    return test


@cache
def _address_test(_countries: Sequence[str]) -> Callable[[str], bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python, about its escapes, where nobody has compiled it yet
        import pyap  # a fifth of a second, with its expressions

        for country in _COUNTRIES_OF_ADDRESSES:
            pyap.parse("", country=country)

    def test(text: str) -> bool:
        of_all = (address for country in _COUNTRIES_OF_ADDRESSES for address in pyap.parse(text, country=country))
        return any(address.street_number and address.postal_code for address in of_all)

    return test


_TESTS = {"email": _email_test, "phone": _phone_test, "address": _address_test}
