"""Numbers as people write them: `-1,234.50`, `3/4`, `2 1/2`, `1.2e3`, `$5 million`, `50%`, `12 km`.

Values are exact fractions. A text counts as a quantity when it holds one number and around it only
words, a unit, a currency or `x =`; `3 or 4`, `2 + 3`, `5x` and `July 4` are not quantities. The
words are ignored, but for `minus` and `negative`; units only count when two that we know contradict
each other (5 km is not 5 miles).
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from groupwise.answers.notation import LIMIT, plain, with_joined_thousands
from groupwise.answers.number_words import SCALES, number_in_words
from groupwise.answers.statements import denied, denied_in_text, stated, without_afterthought

MAX_DIGITS = 400
"""Longer numbers, and exponents beyond it, are not numbers: 1e999999999 must cost nothing."""

_TABLE = """
    length 1/1000 mm millimeter millimeters millimetre millimetres
    length 1/100 cm centimeter centimeters centimetre centimetres
    length 1 m meter meters metre metres
    length 1000 km kilometer kilometers kilometre kilometres
    length 0.0254 inch inches
    length 0.3048 ft foot feet
    length 0.9144 yd yard yards
    length 1609.344 mi mile miles
    mass 1/1000 mg milligram milligrams
    mass 1 g gram grams
    mass 1000 kg kilogram kilograms
    mass 28.349523125 oz ounce ounces
    mass 453.59237 lb lbs
    time 1 s sec secs second seconds
    time 60 min mins minute minutes
    time 3600 h hr hrs hour hours
    time 86400 day days
    time 604800 week weeks
    volume 1/1000 ml milliliter milliliters millilitre millilitres
    volume 1 l liter liters litre litres
    dollar 1 $ dollar dollars usd
    dollar 1/100 cent cents ¢
    euro 1 € euro euros eur
    sterling 1 £ gbp sterling
    yen 1 ¥ yen jpy
    rupee 1 ₹ rupee rupees inr
    morning 1 am
    afternoon 1 pm
    speed 1 m/s meters/second metres/second
    speed 1000/3600 km/h km/hr km/hour kmh kph kmph kilometers/hour kilometres/hour
    speed 1609.344/3600 mph mi/h mi/hr miles/hour mile/hour
    angle 1 ° degree degrees deg
    radian 1 rad radian radians
    celsius 1 °c celsius
    fahrenheit 1 °f fahrenheit
"""
_UNITS = {
    name: (dimension, Fraction(*map(Fraction, factor.split("/"))))
    for dimension, factor, *names in map(str.split, _TABLE.strip().splitlines())
    for name in names
}
_CURRENCIES = "$€£¥₹¢"
_LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}

# A number, and other ways to write it.
_EUROPEAN = r"[0-9]{1,3}(?:(?:\.[0-9]{3}){1,40},[0-9]{1,9}(?![0-9,])|(?:\.[0-9]{3}){2,40}(?![0-9]))"
_GROUPED = (
    r"[0-9]{1,3}(?:(?:,[0-9]{3}){1,40}|(?:'[0-9]{3}){1,40})(?![0-9])"
    r"|[0-9]{1,2}(?:,[0-9]{2}){1,20},[0-9]{3}(?![0-9])"
)
_DECIMAL = rf"(?:{_EUROPEAN}|(?:{_GROUPED}|[0-9]+(?:_[0-9]{{3}})*)(?:\.[0-9]*)?|\.[0-9]+)"
_TIMES_TEN_TO = r"[eE](?=[+-]?[0-9]+(?![A-Za-z0-9]))| ?[×x·*] ?10 ?(?:\^|\*\*) ?[{(]? ?"
_NUMERAL = re.compile(
    rf"(?<![0-9A-Za-z_^\\.])(?:(?P<whole>[0-9]{{1,15}})(?: and | )(?=[0-9]{{1,9}} ?/ ?[0-9]))?"
    rf"(?P<number>{_DECIMAL})"
    rf"(?:(?:{_TIMES_TEN_TO})(?P<exponent>[+-]?[0-9]+)(?: ?[)}}])?| ?/ ?(?P<under>-?{_DECIMAL}))?"
)
_POWER_OF_TEN = re.compile(
    r"(?<![0-9A-Za-z_^\\.×·*])(?<![×x·*] )10 ?(?:\^|\*\*) ?\{? ?([+-]?[0-9]{1,4}) ?\}?$"
)
_RECIPROCAL = re.compile(r"([0-9]{1,6}) ?(?:\^|\*\*) ?[{(]{0,2} ?-([0-9]{1,3}) ?[)}]{0,2}")
_PART = r" ?(?:\{ ?([^{}]{1,60}?) ?\}|([0-9]))"
_FRACTION = re.compile(
    rf"\\[dtc]?frac{_PART}{_PART}|\b([0-9]{{1,9}}) (?:over|out of) ([0-9]{{1,9}})\b"
    r"|\b(1) in ([0-9]{1,9})\b|\{ ?([^{}]{1,60}?) ?\\over ?([^{}]{1,60}?) ?\}"
)
_REPEATING = re.compile(  # 0.\overline{3}, 0.58333...
    r"(?<![0-9.])([0-9]{0,9})\.([0-9]{0,9}?)(?:\\overline ?\{([0-9]{1,9})\}"
    r"|([0-9])\4{2,20}(?:…|\.\.\.))"
)
_NEGATED = re.compile(r"- ?\( ?([0-9./ ]{1,60}?) ?\)")
_COMMA = re.compile(  # a decimal comma: 1,75 kg
    r"(?<![0-9.,({\[])([0-9]{1,15}),(?=[0-9]{1,2}(?![0-9,)}\]]))"
)
_THOUSANDS = re.compile(  # of euros, which have two decimals at most: 1.250 €, 12 000 euros
    r"(?<![0-9.,])([0-9]{1,3})[. ]([0-9]{3})(?:[. ]([0-9]{3}))?(?= ?(?:€|[Ee]uros?\b))"
)
_UNIT_POWER = re.compile(r"(?<=[A-Za-z]) ?(?:\^|\*\*) ?\{? ?(-?[1-4]) ?\}?")
_SUPERSCRIPTS = str.maketrans("-1234", "⁻¹²³⁴")

# What may stand around it.
_NEGATIVE = re.compile(
    r"\bnegative $|(?:^|\b(?:is|are|was|were|be|to|equals|at) |[=:] )minus $", re.IGNORECASE
)
_BEFORE = re.compile(  # words, then a sign, with a currency before or behind it
    rf"(?P<words>[A-Za-z' #,:;.\"()\[\]{{}}≈~?-]*?)(?:(?P<currency>[{_CURRENCIES}]) ?)?"
    rf"(?:(?:^|(?<=[:(≈~{_CURRENCIES}])|(?<=[:(≈~{_CURRENCIES}] ))(?P<sign>[+-]) ?"
    rf"|(?<= )(?P<close>[+-])(?! ))?(?:(?P<behind>[{_CURRENCIES}]) ?)?"
)
_NO_NUMBER_BEFORE = re.compile(  # "ten minus 5" subtracts, log 5 is another number
    r"(?:- ?\(?|\bminus )$|\b(?:not|sin|cos|tan|log|ln|sqrt|exp|mod|and|or)\b", re.IGNORECASE
)
_AFTER = re.compile(r"[A-Za-z' ,:;.\"()\[\]{}/·°%?⁻¹²³⁴-]*")
_NO_NUMBER_AFTER = re.compile(  # an operator, or one letter that is no unit: 5x is not 5
    r"(?<![A-Za-z°])(?:[/-] *(?![A-Za-z])|(?![mgshlLNJWVAKCF])[A-Za-z](?<! a)(?![A-Za-z]))"
)
_PER = re.compile(r" per | / | an? (?=hour|second)")
_MEASURE = re.compile(r"[A-Za-z°]+(?:/[A-Za-z]+)*[²³]?")
_BEHIND = re.compile(
    r" ?(?:%|per ?cent\b)|!(?= [a-z])|_[0-9]{1,2}(?![0-9])|[kKMB](?![A-Za-z])"
    r"|\^\{?-?[0-9]{1,9}\}?|(?:π|\\pi\b)(?:\^\{?-?[0-9]{1,4}\}?)?"
    r"| ?°[CF]?\b| (?P<word>(?:km|mi)/hr?|m/s|[A-Za-z]{1,12}(?: (?:per|an?) (?:hour|second)\b)?)"
    r"(?![A-Za-z/&'])(?:\^[23])?"
)
_IN_EXPONENT = re.compile(r"\^ ?[{(]? ?-?$")
_RATIO_BEFORE = re.compile(r"(?<![0-9.,:])(?:[0-9]{1,6}:|[0-9]{1,6} : )$")
_LEFT_TO_DO = re.compile(  # 6 × 7 is no 7, and 2/5 of 60 no 60
    r"(?:(?:[0-9)]%?|\b[0-9]{0,6}[a-z])\$? ?(?:[×*+·÷]| [-−]) \$?|± ?|(?<![0-9])[0-9]{1,6}[-–−]"
    r"|/[0-9]{1,6} of )$"
)
_UNDONE = re.compile(  # 45 = 9 × 5, 32 = 2^5
    r" ?(?:[a-z]|[0-9]{1,9}\^\{?[0-9]{1,4}\}?|[0-9.,]{1,12}(?: ?[×*·+-] ?[0-9.,]{1,12}){1,9})"
)
_SAID_TWICE = re.compile(  # 7500 cents, which is $75.00; 2 hours (120 minutes)
    r"([$€£]?[0-9][0-9.,/]{0,15}(?: ?%|(?: [a-z]{1,12}){0,4}))"
    r"(?:,? (?:or(?: equivalently)?|which is|that is|ie)"
    r"| \(=?) ?([$€£]?[0-9][0-9.,/]{0,15}(?: ?%| [a-z]{1,12})?)\W*$"
)
_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    "|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
_DATE = re.compile(
    rf"\b(?:{_MONTHS})\.? [0-9]|\b[0-9]{{1,2}}(?:st|nd|rd|th)? (?:of )?(?:{_MONTHS})\b"
    r"|\b[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\b"
)


@dataclass(frozen=True)
class Quantity:
    """Quantity(Fraction(5), unit="km"). A percentage keeps its number: 50% is 50 with `percent`."""

    value: Fraction
    percent: bool = False
    unit: str | None = None


def extract_number(text: str) -> Fraction | None:
    """The one number that an answer states, exactly; None if there is none or more than one.

    extract_number("$1,234.50") == Fraction(2469, 2);  extract_number("50%") == 50
    """
    quantity = read_quantity(text)
    return None if quantity is None else quantity.value


@lru_cache(4096)  # a group's answers share their truth, and often each other
def read_quantity(text: str) -> Quantity | None:
    """The quantity that an answer states; None if it is none, or too long to be one."""
    if not 0 < len(text) <= LIMIT:
        return None
    text = with_joined_thousands(stated(plain(text)))
    if is_date(text):
        return None
    text = _NEGATED.sub(r"-\1", _FRACTION.sub(_with_slash, _REPEATING.sub(_repeated, text)))
    text = _right_side(" ".join(text.split()))
    if (reciprocal := _RECIPROCAL.fullmatch(text)) is not None:
        return _reciprocal(int(reciprocal[1]), int(reciprocal[2]))
    text = _UNIT_POWER.sub(lambda m: m[1].translate(_SUPERSCRIPTS), text)
    matches = list(_NUMERAL.finditer(text := _POWER_OF_TEN.sub(r"1e\1", text)))
    if len(matches) == 1:
        return _quantity(matches[0], text)
    value, noun = (not matches and number_in_words(text)) or (None, "")
    return None if value is None else Quantity(value, unit=noun if noun in _UNITS else None)


def same_quantity(a: Quantity, b: Quantity) -> bool:
    """Equal numbers, exactly. 50% equals 50 and 0.5, which do not equal each other."""
    if a.percent != b.percent:
        percent, other = (a, b) if a.percent else (b, a)
        return other.unit is None and other.value in (percent.value, percent.value / 100)
    if a.unit and b.unit:
        (dimension_a, factor_a), (dimension_b, factor_b) = _unit(a.unit), _unit(b.unit)
        return dimension_a == dimension_b and a.value * factor_a == b.value * factor_b
    return a.value == b.value


def is_rounded(exactly: str, roughly: str) -> bool:
    """Whether both are one number, the second rounded: two different ones would be two answers."""
    exact, rough = read_quantity(exactly), read_quantity(roughly)
    if exact is None or rough is None:
        return False
    return abs(exact.value - rough.value) <= abs(exact.value) / 100 or same_quantity(exact, rough)


def is_date(text: str) -> bool:
    """Whether a day is named: its numbers are then no quantities. Capital letters tell May."""
    return _DATE.search(text) is not None


def with_decimal_point(text: str) -> str:
    """with_decimal_point("3,5") == "3.5": what no English number can be, but a European one is."""
    return _COMMA.sub(r"\1.", text)


def said_twice(sentence: str) -> str | None:
    """The quantity that a sentence ends on in two units, as "7500 cents ≈ $75"."""
    match = _SAID_TWICE.search(sentence)
    return " ≈ ".join(match.groups()) if match and is_rounded(*match.groups()) else None


def last_number(text: str) -> str | None:
    """The last number in running text as it stands there, with its sign, currency and percent.

    None where the words around it say that it is not the answer.
    """
    joined = _THOUSANDS.sub(lambda m: "".join(filter(None, m.groups())), without_afterthought(text))
    text = _FRACTION.sub(_with_slash, with_decimal_point(joined))
    found = _NUMERAL.finditer(text)
    numbers = [one for one in found if not _IN_EXPONENT.search(text[: one.start()][-4:])]
    if not numbers:
        return None
    start, end = numbers[-1].span()
    before = text[max(start - 40, 0) : start]
    whole = numbers[-1]["under"] and (_value(numbers[-1]) or Fraction(1, 2)).denominator == 1
    if whole or _LEFT_TO_DO.search(before) or denied_in_text(before, text[end : end + 80]):
        return None
    sign = "-" if _NEGATIVE.search(before) else ""
    if start and text[start - 1] in _CURRENCIES:
        start -= 1
    if (ratio := _RATIO_BEFORE.search(text[max(start - 12, 0) : start])) is not None:
        start -= len(ratio[0])
    # A minus is a sign unless it could subtract from what stands directly before it.
    if start and text[start - 1] in "-−" and not text[start - 2 : start - 1].isalnum():
        start -= 1
    return sign + text[start:end].rstrip(".") + _measured(text[end : end + 40])


def _measured(after: str) -> str:
    """What belongs to the number before it: a percent sign, a power, pi, a scale, a unit."""
    match = _BEHIND.match(after)
    word = _PER.sub("/", (match["word"] or "").lower()) if match else ""
    return match[0] if match and (not word or word in _UNITS or word in SCALES) else ""


def _right_side(text: str) -> str:
    """What stands after the last `=`: 5 in `x = 5` and `2 + 3 = 5`. Of `x = 3, y = 4`, nothing."""
    left, equals, right = text.replace("≈", "=").rpartition("=")
    if not equals:
        return text
    if re.search(r"(?:[<>\\]|(?<![0-9])!)$", left) or re.search(r"=.*(?:,|\band\b|\bor\b|;)", left):
        return ""
    return left.rpartition("=")[2] if _UNDONE.fullmatch(right) else right.strip()


def _quantity(match: re.Match[str], text: str) -> Quantity | None:
    before, after = text[: match.start()], text[match.end() :]
    prefix, value = _prefix(before), _value(match)
    if prefix is None or value is None or denied(before, after):
        return None
    sign, currency = prefix
    scale = _LETTER_SCALES.get(after[:1], 1)
    if scale > 1 and not after[1:2].isalnum() and (currency or scale == 1000):
        value, after = value * scale, after[1:]
    after = after.strip()
    if after and after[0] in _CURRENCIES:
        currency, after = after[0], after[1:].strip()
    if not _AFTER.fullmatch(after) or _NO_NUMBER_AFTER.search(after):
        return None
    while (word := after.partition(" ")[0].lower()) in SCALES:
        value, after = value * SCALES[word], after[len(word) :].lstrip()
    percent = after.startswith(("%", "percent", "per cent"))
    measure = _MEASURE.match(_PER.sub("/", after))
    name = measure[0].lower() if measure else ""
    unit = currency or (name if name.rstrip("²³") in _UNITS else None)
    return Quantity(sign * value, percent, None if percent else unit)


def _prefix(before: str) -> tuple[int, str | None] | None:
    """Sign and currency from the text before a number; None if that text is more than words."""
    match = _BEFORE.fullmatch(before)
    if match is None:
        return None
    negative = _NEGATIVE.search(match["words"]) is not None
    if not negative and _NO_NUMBER_BEFORE.search(match["words"]):
        return None
    minus = negative or "-" in (match["sign"], match["close"])
    return -1 if minus else 1, match["currency"] or match["behind"] or None


def _unit(name: str) -> tuple[str, Fraction]:
    """Dimension and factor: _unit("cm²") == ("length²", Fraction(1, 10000))"""
    dimension, factor = _UNITS[name.rstrip("²³")]
    power = {"²": 2, "³": 3}.get(name[-1], 1)
    return dimension + name[len(name.rstrip("²³")) :], factor**power


def _value(match: re.Match[str]) -> Fraction | None:
    exponent, under = match["exponent"] or "0", _decimal(match["under"] or "1")
    number = _decimal(match["number"])
    if number is None or not under or len(exponent) > 4 or abs(int(exponent)) > MAX_DIGITS:
        return None
    return number / under * Fraction(10) ** int(exponent) + int(match["whole"] or 0)


def _decimal(text: str) -> Fraction | None:
    if len(text) > MAX_DIGITS:
        return None
    if re.fullmatch(_EUROPEAN, text):
        text = text.replace(".", "").replace(",", ".")
    return Fraction(re.sub(r"[,' _]", "", text).removesuffix("."))


def _with_slash(match: re.Match[str]) -> str:
    return " {}/{} ".format(*filter(None, match.groups()))


def _repeated(match: re.Match[str]) -> str:
    """A decimal whose last digits go on for ever, as a fraction: 0.\\overline{3} is 3/9."""
    whole, fixed, cycle = match[1], match[2], match[3] or match[4]
    over = int(f"{whole}{fixed}{cycle}") - int(f"{whole}{fixed}" or "0")
    return f"{over}/{'9' * len(cycle)}{'0' * len(fixed)}"


def _reciprocal(base: int, power: int) -> Quantity | None:
    """2^{-3} is a way to write 1/8. (2^3 is none to write 8: it leaves the work undone.)"""
    if not base or power * len(str(base)) > MAX_DIGITS:
        return None
    return Quantity(Fraction(1, base**power))
