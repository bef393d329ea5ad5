"""Answers as people and models write them. A wrong verdict here is a wrong reward in training."""

import json
import threading
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.answers import mathematics
from groupwise.answers.final import (
    canonical_answer,
    correct,
    extract_number,
    final_answer,
    same_answer,
)
from groupwise.answers.quantities import last_number

EQUAL = [
    # plain numbers, signs, zeros
    ("42", "42"),
    (" 42 ", "42"),
    ("42.", "42"),
    ("42.0", "42"),
    ("42.00", "42"),
    ("+42", "42"),
    ("-7", "-7"),
    ("−7", "-7"),
    ("–7", "-7"),
    ("- 7", "-7"),
    ("-0", "0"),
    ("007", "7"),
    (".5", "0.5"),
    ("0.50", ".5"),
    ("4２", "42"),
    # thousands
    ("1,234", "1234"),
    ("1 234", "1234"),
    ("1\u202f234\u202f567", "1234567"),
    ("1,234,567.89", "1234567.89"),
    ("1'234", "1234"),
    ("1_000_000", "1000000"),
    ("1{,}234", "1234"),
    ("1\\,234", "1234"),
    ("1,\\!234", "1234"),
    ("10,00,000", "1000000"),
    ("1.234.567,89", "1234567.89"),
    ("-1,234", "-1234"),
    # fractions and mixed numbers
    ("3/4", "0.75"),
    ("6/8", "3/4"),
    ("-3/4", "-0.75"),
    ("3 / 4", "3/4"),
    ("\\frac{3}{4}", "3/4"),
    ("\\dfrac{3}{4}", "0.75"),
    ("\\tfrac34", "0.75"),
    ("\\frac34", "3/4"),
    ("-\\frac{3}{4}", "-0.75"),
    ("\\frac{-3}{4}", "-3/4"),
    ("\\frac{3}{-4}", "-3/4"),
    ("2 1/2", "2.5"),
    ("2\\frac{1}{2}", "5/2"),
    ("2½", "2.5"),
    ("½", "0.5"),
    ("3⁄4", "0.75"),
    ("\\frac{1,000}{4}", "250"),
    ("7/1", "7"),
    # percentages
    ("50%", "50"),
    ("50%", "0.5"),
    ("50\\%", "50%"),
    ("50 percent", "50%"),
    ("12.5 %", "12.5"),
    ("0.5", "50%"),
    ("1/2", "50%"),
    ("-3%", "-3"),
    # money
    ("$12.50", "12.5"),
    ("\\$12.50", "12.50"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("$5", "5 dollars"),
    ("50 cents", "$0.50"),
    ("50¢", "50 cents"),
    ("€1,000", "1000"),
    ("1000 €", "€1000"),
    ("£3.20", "3.2"),
    ("US $5", "5"),
    ("$1.2 million", "1200000"),
    ("$5k", "5000"),
    ("$3M", "3 million"),
    ("2 thousand", "2,000"),
    ("$ 18", "18"),
    # units and words
    ("12 apples", "12"),
    ("5 km", "5"),
    ("5km", "5 kilometers"),
    ("5 km/h", "5"),
    ("60 miles per hour", "60"),
    ("1 hour", "60 minutes"),
    ("2 m", "200 cm"),
    ("12 cm^2", "12"),
    ("12 cm²", "12 cm^2"),
    ("12\\text{ cm}^2", "12"),
    ("5 m^3", "5"),
    ("30°", "30"),
    ("30^\\circ", "30"),
    ("30^{\\circ}", "30 degrees"),
    ("5th", "5"),
    ("5 (five)", "5"),
    ("about 5", "5"),
    ("≈ 3.14", "3.14"),
    ("\\approx 3.14", "3.14"),
    ("five", "5"),
    ("five hundred", "500"),
    ("8 a.m.", "8 am"),
    ("#5", "5"),
    ("5 = x", "5"),
    ("twenty-one", "21"),
    ("Seven days", "7"),
    ("5-year-old", "5"),
    ("a total of 15 eggs", "15"),
    ("She has 15 eggs left.", "15"),
    # dress
    ("\\boxed{42}", "42"),
    ("$\\boxed{42}$", "42"),
    ("$42$", "42"),
    ("$$42$$", "42"),
    ("\\(42\\)", "42"),
    ("\\[ 42 \\]", "42"),
    ("**42**", "42"),
    ("`42`", "42"),
    ("*42*", "42"),
    ("__42__", "42"),
    ("(42)", "42"),
    ('"42"', "42"),
    ("\\text{42}", "42"),
    ("\\boxed{\\text{42 apples}}", "42"),
    ("\\mathbf{42}", "42"),
    ("\\boxed{1{,}234\\text{ km}}", "1234"),
    ("{42}", "42"),
    # equations that end on a value
    ("x = 5", "5"),
    ("x=-5", "-5"),
    ("2 + 3 = 5", "5"),
    ("y = \\frac{1}{2}", "0.5"),
    ("= 5", "5"),
    ("Answer: 5", "5"),
    ("The answer is 5.", "5"),
    ("5", "x = 5"),
    # scientific
    ("1.2e3", "1200"),
    ("1.2E+3", "1200"),
    ("1e-3", "0.001"),
    ("1.2 × 10^3", "1200"),
    ("1.2 \\times 10^{3}", "1200"),
    ("1.2 \\cdot 10^{-3}", "0.0012"),
    ("1.2 x 10^3", "1200"),
    ("1.2*10^3", "1200"),
    ("1.2*10**3", "1200"),
    ("6.02×10²³", "6.02e23"),
    ("10^6", "1000000"),
    ("10⁻²", "0.01"),
    # choices
    ("(B)", "B"),
    ("B", "(B)"),
    ("b", "B"),
    ("B.", "B"),
    ("B)", "B"),
    ("Option B", "B"),
    ("B) 21 km", "B"),
    ("B", "B) 21 km"),
    ("**(C)**", "C"),
    ("\\text{(D)}", "D"),
    ("The answer is E", "E"),
    # text
    ("Paris", "paris"),
    (" New  York ", "New York"),
    ("Yes.", "yes"),
    ("\\text{east}", "East"),
    ('"no"', "No"),
    ("(3, 4)", "(3,4)"),
    ("3:4", "3 : 4"),
    ("12:30", "12:30"),
    ("1e999999999", "1e999999999"),
    # mathematics
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
    ("1+x", "x+1"),
    ("x^2+2x+1", "(x+1)^2"),
    ("\\frac{\\pi}{2}", "\\pi/2"),
    ("\\sqrt{75}", "5\\sqrt{3}"),
    ("\\{2, 1\\}", "\\{1,2\\}"),
    ("[1, 2)", "[1,2)"),
    ("(\\frac{1}{2}, 2)", "(0.5, 2)"),
    ("x \\leq 5", "x \\le 5"),
    ("4", "\\sqrt{16}"),
    ("√2", "\\sqrt{2}"),
    ("(−∞, 3)", "(-\\infty,3)"),
    ("\\boxed{2\\sqrt{3}}", "$2\\sqrt{3}$"),
    ("\\left(3, \\frac{\\pi}{2}\\right)", "(3, \\frac{\\pi}{2})"),
]

DIFFERENT = [
    ("42", "43"),
    ("42", "-42"),
    ("4.2", "42"),
    ("420", "42"),
    ("1,234", "1.234"),
    ("12345", "1234"),
    ("0.333", "1/3"),
    ("3.14", "\\pi"),
    ("3/4", "4/3"),
    ("2 1/2", "21/2"),
    ("50", "0.5"),
    ("50%", "5"),
    ("5%", "50%"),
    ("1/0", "0"),
    ("5 km", "5 miles"),
    ("5 minutes", "5 hours"),
    ("$5", "€5"),
    ("1 hour", "60 seconds"),
    ("8 am", "8 pm"),
    ("$5 million", "5"),
    ("5k", "5"),
    ("3 or 4", "3"),
    ("3 or 4", "4"),
    ("3, 4", "4"),
    ("3 and 4", "3"),
    ("3-4", "4"),
    ("between 3 and 4", "4"),
    ("1 2 3 4 5 6 7", "7"),
    ("not 5", "5"),
    ("x = 3, y = 4", "4"),
    ("2+3", "5"),
    ("23+48-16", "55"),
    ("10 - 5", "5"),
    ("x - 5", "-5"),
    ("5x", "5"),
    ("x + 5", "5"),
    ("2^3", "8"),
    ("2^3", "2"),
    ("\\sqrt{5}", "5"),
    ("5!", "5"),
    ("x > 5", "5"),
    ("± 5", "5"),
    ("x2", "2"),
    ("H2O", "2"),
    ("log 5", "5"),
    ("\\frac{x}{2}", "2"),
    ("\\frac{1}{2}x", "1/2"),
    ("1.2e3", "1.2"),
    ("1.2 × 10^3", "1.2"),
    ("10^6", "10"),
    ("1e999999999", "1"),
    ("12:30", "12"),
    ("2020-05-06", "2020"),
    ("3:4", "4:3"),
    ("(3,4)", "(4,3)"),
    ("[1,2)", "(1,2]"),
    ("", "0"),
    ("", ""),
    (" ", "5"),
    ("none", "0"),
    ("5", ""),
    ("Paris", "London"),
    ("listen", "silent"),
    ("New York", "Newyork city"),
    ("B", "C"),
    ("(A) or (B)", "A"),
    ("A dog", "A"),
    ("AB", "A"),
    ("A, B, C, D, E", "C"),
    ("east", "west"),
    ("not east", "east"),
    ("x+1", "x-1"),
    ("x^2", "2x"),
    ("\\sqrt{2}", "\\sqrt{3}"),
    ("\\frac{\\pi}{2}", "\\frac{\\pi}{3}"),
    ("\\{1,2\\}", "\\{1,2,3\\}"),
    ("9^{9^{9^{9}}}", "\\pi"),
]


def test_the_tables_hold_at_least_150_strings() -> None:
    assert len(EQUAL) + len(DIFFERENT) >= 150
    assert len(set(EQUAL)) == len(EQUAL)


@pytest.mark.parametrize(("answer", "truth"), EQUAL)
def test_equal_answers_are_equal(answer: str, truth: str) -> None:
    assert same_answer(answer, truth)


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT)
def test_different_answers_differ(answer: str, truth: str) -> None:
    assert not same_answer(answer, truth)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$1,234.50", Fraction(2469, 2)),
        ("0.1", Fraction(1, 10)),
        ("50%", Fraction(50)),
        ("−\\frac{7}{3}", Fraction(-7, 3)),
        ("3 1/7", Fraction(22, 7)),
        ("1.5e-3 m", Fraction(3, 2000)),
        ("two and 3", None),
        ("no number", None),
        ("5 + 5", None),
        ("1" * 401, None),
        ("1e401", None),
    ],
)
def test_numbers_are_exact_fractions(text: str, value: Fraction | None) -> None:
    assert extract_number(text) == value


FINAL = [
    ("<think>2+2</think><answer> 4 </answer>", "4"),
    ("<answer></answer> 5", None),
    ("<answer>4</answer> or <answer>5</answer>", None),
    ("<answer>4</answer> \\boxed{5}", "4"),
    ("We get \\boxed{\\frac{1}{2}} apples, so 3.", "\\frac{1}{2}"),
    ("\\boxed{1} then \\boxed{{2}}", "{2}"),
    ("\\boxed{ and 7", "7"),
    ("Work: 3*4=12\n#### 12", "12"),
    ("#### 1,200\nI hope this helps!", "1,200"),
    ("#### Step 1: add 5\nSo we have 5+6=11 eggs.", "11"),
    ("##### 5 things\nso 9", "9"),
    ("The answer is 12. I am sure about all 3 steps.", "12"),
    ("The final answer is: **$12.50**", "$12.50"),
    ("Answer: B", "B"),
    ("the answer is -5.5 degrees.", "-5.5 degrees"),
    ("First 3, then 4, so there are 1,234.", "1,234"),
    ("It costs $12.50.", "$12.50"),
    ("The result is -7", "-7"),
    ("7-3", None),
    ("that is 45%.", "45%"),
    ("so 3/4 remain", "3/4"),
    ("no number at all", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), FINAL)
def test_the_final_answer_is_found_where_it_stands(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_correct_reads_gsm8k_truths_and_plain_ones() -> None:
    assert correct("<think>9*2</think><answer>$18</answer>", "9 * 2 = <<9*2=18>>18\n#### 18")
    assert correct("She makes 18 dollars.", 18)
    assert not correct("<answer>17</answer>", "#### 18")
    assert not correct("", "18")


def test_spamming_numbers_or_copying_the_question_is_not_correct() -> None:
    assert not correct("<answer>1 2 3 4 5 6 7 8 9 10</answer>", "7")
    assert not correct("<answer>23+48-16</answer>", "55")
    assert not correct("<answer>55</answer><answer>54</answer>", "55")


def test_equal_answers_share_a_canonical_form() -> None:
    texts = ["<answer>0.50</answer>", "\\boxed{\\frac12}", "#### 1/2", "it is .5"]
    assert {canonical_answer(text) for text in texts} == {"1/2"}
    assert canonical_answer("<answer> Paris. </answer>") == "paris"
    assert canonical_answer("nothing") is None


HOSTILE = {
    "ten million digits": "1" * 10_000_000,
    "ten million commas": "1," * 5_000_000,
    "groups that end wrong": "1" + ",111" * 2_000_000 + ",11",
    "deep braces": "\\boxed{" * 1_000_000,
    "deep braces closed": "\\boxed" + "{" * 500 + "1" + "}" * 500,
    "an answer of ten million": "<answer>" + "9" * 10_000_000 + "</answer>",
    "open tags": "<answer>" * 1_000_000,
    "spaces": " " * 10_000_000,
    "hashes": "#" * 10_000_000,
    "minus signs": "-" * 10_000_000,
    "says so": "the answer is " * 500_000,
    "fractions": "\\frac{" * 1_000_000,
    "clauses": "it takes 1 a to b if there are 2 a that need 3 more than 4 a or " * 100_000,
    "hypotheses": "would be if " * 500_000,
    "dots": "1." * 4_000_000,
    "slashes": "1/" * 4_000_000,
    "huge exponent": "<answer>1e999999999</answer>",
    "huge power": "<answer>10^999999999</answer>",
    "tower": "<answer>9^{9^{9^9}}</answer>",
    "tower in braces": "<answer>9^{{9}^{9}^{9}}</answer>",
    "tower of powers in brackets": "<answer>9^(9)^(9)^9</answer>",
    "tower of sums": "<answer>9^{0+9^{1+9}}</answer>",
    "tower of letters": "<answer>9^e^9^9</answer>",
    "tower with signs": "<answer>9^-9^9</answer>",
    "tower of stars": "<answer>9**9**9**9</answer>",
    "factorial": "<answer>99999999!</answer>",
    "nested factorial": "<answer>((99!)!)!</answer>",
    "high power of a sum": "<answer>(x+y+z)^{99}</answer>",
    "sum": "<answer>\\sum_{n=1}^{9999999} n^n</answer>",
    "surrogate": "<answer>\ud800</answer>",
    "nulls": "<answer>\0\0</answer>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_judged_wrong_and_costs_little(name: str) -> None:
    start = time.process_time()
    assert not correct(HOSTILE[name], "\\frac{\\pi}{7}")
    assert not correct(HOSTILE[name], "7")
    assert time.process_time() - start < 10  # what hangs takes minutes


@pytest.mark.parametrize("size", [300, 999])
@pytest.mark.parametrize(
    "piece",
    ["1", "1,", "1 ", "{", "\\frac{1", "$", "-", "x^", "a ", "10^", "\\text{", "(", "1/", "="],
)
def test_strings_of_the_longest_length_compared_are_quick(piece: str, size: int) -> None:
    text = (piece * size)[:size]
    start = time.process_time()
    assert extract_number(text) is None or piece in ("1", "1,", "1 ")
    assert not same_answer(text, "\\sqrt{7}")
    assert time.process_time() - start < 10


def test_mathematics_is_compared_in_any_thread() -> None:
    verdicts: list[bool] = []
    thread = threading.Thread(
        target=lambda: verdicts.append(same_answer("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"))
    )
    thread.start()
    thread.join()
    assert verdicts == [True]


integers = st.integers(-(10**15), 10**15)
decimals = st.decimals(min_value=-(10**9), max_value=10**9, places=3).map(lambda d: d + 0)


@given(integers)
def test_any_integer_is_found_however_it_is_written(number: int) -> None:
    grouped = f"{number:,}"
    for text in (
        str(number),
        grouped,
        grouped.replace(",", " "),
        grouped.replace(",", "{,}"),
        str(number).replace("-", "−"),
        f"{number}.",
        f"{number}.00",
        f"{number} apples",
        f"$\\boxed{{{number}}}$",
        f"**{grouped}**",
        f"x = {number}",
        f"\\frac{{{number}}}{{1}}",
        f"{number}e0",
        f"{number} \\times 10^{{0}}",
    ):
        assert extract_number(text) == number, text
        assert same_answer(text, str(number)), text
        assert not same_answer(text, str(number + 1)), text


@given(decimals)
def test_any_decimal_is_found_at_the_end_of_a_text(number: Decimal) -> None:
    value = Fraction(number)
    for text in (f"{number:f}", f"{number:,f}", f"${number:f}", f"{number:f}%", f"{number:f} kg"):
        assert extract_number(text) == value, text
    for text in (
        f"<think>1+1</think><answer>{number:f}</answer>",
        f"So 3 times that is {number:,f}.",
        f"3\n#### {number:f}",
        f"The answer is {number:f}.",
    ):
        found = final_answer(text)
        assert found is not None and extract_number(found) == value, text


@given(st.integers(-999, 999), st.integers(1, 999))
def test_any_fraction_is_found(top: int, bottom: int) -> None:
    for text in (
        f"{top}/{bottom}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"\\dfrac{{{top}}}{{{bottom}}}",
    ):
        assert extract_number(text) == Fraction(top, bottom)


symbols = st.text(
    alphabet="0123456789.,-+/%$\\{}()[]^_eExX ×·=#<>answer boxedfrac\n\0½é", max_size=60
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=100), symbols))
def test_no_text_raises(text: str) -> None:
    for mapped in (final_answer(text), last_number(text), canonical_answer(text)):
        assert mapped is None or isinstance(mapped, str)
    assert correct(text, "7") in (True, False)
    assert extract_number(text) is None or isinstance(extract_number(text), Fraction)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_a_text_that_is_not_blank_equals_itself(text: str) -> None:
    assert same_answer(text, text) == bool(text.strip())


def test_all_gsm8k_gold_solutions_are_correct() -> None:
    file = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gsm8k" / "test.jsonl"
    if not file.is_file():
        pytest.skip("GSM8K is not beside the checkout")
    solutions = [json.loads(line)["answer"] for line in file.read_text().splitlines()]
    assert len(solutions) == 1319
    assert all(correct(solution, solution) for solution in solutions)
    finals = [solution.rpartition("####")[2].strip() for solution in solutions]
    assert all(
        correct(f"<answer>{final}</answer>", s) for final, s in zip(finals, solutions, strict=True)
    )
    following = finals[1:] + finals[:1]
    wrong = sum(correct(s, other) for s, other in zip(solutions, following, strict=True))
    assert wrong == sum(
        int(a.replace(",", "")) == int(b.replace(",", ""))
        for a, b in zip(finals, following, strict=True)
    )


def test_a_comparison_of_formulas_is_made_once_for_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    verified, math_verify = [], mathematics._math_verify()

    def verify(right: object, given: object, **options: object) -> bool:
        verified.append((right, given))
        return math_verify.verify(right, given, **options)

    library = SimpleNamespace(parse=math_verify.parse, verify=verify)
    monkeypatch.setattr(mathematics, "_math_verify", lambda: library)
    mathematics._same.cache_clear()
    group = [r"\boxed{(x+2)^2-4x}", r"\boxed{x^2+5x}"] * 4
    assert [correct(text, "4 + x^2") for text in group] == [True, False] * 4
    assert len(verified) == 2
