"""What running text concludes: each line is a rule of groupwise/answers/prose.py."""

import time

import pytest

from groupwise.answers import choices
from groupwise.answers.final import correct
from groupwise.answers.prose import concluded

CONCLUDED = [
    ("She has 18 marbles. This matches the total of 40.", "18"),
    ("So x = 7.\n\nCheck: 3·7 + 4 = 25", "7"),
    ("He has 15 cards left (he started with 40).", "15"),
    ("It costs 9, because 3 times 3 is 9 and not 12.", "9"),
    ("You need 11 buses. Would you like to see 2 other ways?", "11"),
    ("So, in the end, seventeen people came.", "seventeen people"),
    ("91 = 7 × 13, so the number of prime factors is two.", "two"),
    ("The trip takes 90 hours.", "90 hours"),
    ("It holds 2,5 kg of rice.", "2.5 kg"),
    ("The area is 9π square units.", "9π"),
    ("The movie lasts 1 hour and 30 minutes.", "90 minutes"),
    ("The ratio of boys to girls is 3 to 4.", "3:4"),
    ("x = 3 makes it zero, so there is no solution.", "no solution"),
    ("He pays $64. Without the discount it would have been $80.", "$64"),
    ("He has 13 cards left after giving 5 to Ann and 2 to Ben.", "13"),
    ("Ben has 13 more cards than Al, who has 25.", "13"),
    ("He was 14 years old when the club was founded in 1998.", "14"),
    ("There are 13 weeks in 91 days.", "13 weeks"),
    ("4 * 6 = 24 eggs. So he needs 24 eggs for 4 cakes.", "24"),
    ("There are 14 + 16 = 30 students. So the 30 students eat 60 apples.", "60"),
    ("The sum is 3 + 4 = 7. The ratio of 7 boys to girls is 3 to 4.", "3:4"),
    ("Die Antwort lautet 3,5 Liter.", "3.5 Liter"),
    ("Am Ende hat sie 1.250 € gespart.", "1250"),
    ("He has 3 boxes of 4, that makes twelve.", "twelve"),
    ("It's either 12 or 15, depending on the first day.", None),
    ("I can't solve this without the price. You mention 60 dollars.", None),
    ("It is 9 or 11, I can't decide.", None),
    ("There is not enough information. We only know that there are 30 balls.", None),
    ("Is 18 the number in your book?", None),
    ("Therefore x > 5.", None),
    ("Es sind mindestens 15 Euro.", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "number"), CONCLUDED)
def test_what_a_text_concludes(text: str, number: str | None) -> None:
    assert concluded(text) == number


def test_what_others_would_answer_is_not_the_answer() -> None:
    text = "You might think the answer is 20, but the first day is free, so she pays 18 dollars."
    assert correct(text, "18") and not correct(text, "20")
    text = "The final answer would be 45 if Sunday counted, but it does not, so it is 40."
    assert correct(text, "40") and not correct(text, "45")
    assert correct("If every child gets two, the answer would be 18.", "18")
    assert correct("The total is $88. If tax were ignored, the answer would be 80.", "88")


def test_what_is_said_behind_the_box_corrects_it() -> None:
    text = r"So it is \boxed{32}. Actually, I forgot one. The correct answer is 31, not 32."
    assert correct(text, "31") and not correct(text, "32")
    assert correct(r"\boxed{32} and so the answer is what we wanted.", "32")


def test_a_paragraph_that_checks_concludes_nothing() -> None:
    check = "Verification: the father is 3 * 12 = 36. In 12 years they will be 24 and 48. Correct!"
    assert correct(f"So the son is 12.\n\n{check}", "12")
    assert correct(f"So the son is 12.\n\n{check} So the father is 36.", "36")


def test_percent_and_bases_keep_their_meaning_in_sentences() -> None:
    assert correct("It is 75 percent.", "3/4") and not correct("It is 75 apples.", "3/4")
    assert correct("So it is 101 in base 2.", "101_2") and not correct("It is 101.", "102_3")


def test_a_decimal_comma_is_read_where_the_truth_is_one_number() -> None:
    assert correct("\\boxed{3,5}", "3.5") and not correct("\\boxed{3,5}", "35")
    assert not correct("\\boxed{3,500}", "3.5")
    assert correct("So $P = 1/6 \\approx 0.167$", "1/6")
    assert correct("So $P = 1/6 \\approx 0.167$", "0.167")
    assert not correct("\\boxed{17 \\approx 18}", "17")  # two answers


def test_units_that_contradict_the_truth_are_wrong_and_others_are_converted() -> None:
    assert correct("The trip takes 1.5 hours.", "90 minutes")
    assert not correct("The trip takes 90 hours.", "90 minutes")
    assert correct("Each sticker costs 25 cents.", "$0.25")
    assert not correct("The company sold 5 thousand phones.", "5 phones")


HOSTILE = (
    "(", "() ", "a and ", "wait ", "since ", ", as", "a dozen and ", "A ✓ ", "~~", "1 hour and ",
    "x > ", "1,2 ", " (1) ", "answer is ", "A: 5 ", "the second option ", "٣½⁴", "\\boxed{1} or ",
    "not A, but ", ". ", "?!.", "isn't 1, a, but ", "3 : ", "without ", "1.000 ",
    " after being", ", who ", "might say but ", "either 1 or ", "9 in 9 ", "e.g.", "≈ 1 ", "1,5",
    " when it is in 19", "\nA) <-", "1 000 ", "total a has ", "can't solve ", "= 1 ", "= 1. 1 ",
    "the answer would be if ", "if it were would ",
    "\nQ: ", "= 1\n\nProblem 1: ", "<|im_end|>", "x = 1 and ", "x < 1 or ", "$x^2$ ", "x^2 with ",
    "**odd** ", "is odd, ", "- x = 1\n", "1 000 ", "the square root of ", " (≈ 1)", "x_1 since ",
)  # fmt: skip


@pytest.mark.parametrize("part", HOSTILE)
def test_repetition_takes_no_time(part: str) -> None:
    text = part * (8000 // len(part))
    began = time.process_time()
    correct(text, "7")
    choices.chosen(text, ["1", "2", "3", "4", "5"])
    assert time.process_time() - began < 2.0


def test_an_option_that_is_no_number_is_chosen_by_what_the_text_ends_with() -> None:
    formulas = ["x+3", "x-3", "2x+3", "2x-3", "3-x"]
    assert choices.chosen("Simplifying, we are left with 2x - 3.", formulas) == "D"
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
    assert choices.chosen("2 days on from Monday we land on a Wednesday.", days) == "C"
    assert choices.chosen("It falls on Thursday, one day later than Wednesday.", days) != "C"
    assert choices.chosen("A) x+3\nB) x-3  <-- correct\nC) 2x+3", formulas) == "B"


def test_a_place_counts_only_where_it_is_the_choice() -> None:
    options = ["5 km", "10 km", "15 km", "20 km", "25 km"]
    reasoned = "The second one takes 3 hours at 5 km/h. So the distance is 15 km."
    assert choices.chosen(reasoned, options) == "C"
    assert choices.chosen("The second train is late, so I take the third option.", options) == "C"
    assert choices.chosen("The last one.", options) == "E"


def test_what_follows_the_reply_does_not_count() -> None:
    first = "3 * 4 = 12 pens."
    assert correct(f"{first}\n\nQ: What is 5 * 5?\nA: The answer is 25.", "12")
    assert correct(f"{first}<|im_end|>\n<|im_start|>user\nAnd 5 * 5?", "12")
    assert correct(f"{first}\nHuman: And 5 * 5?\nAssistant: \\boxed{{25}}", "12")
    assert correct("Problem: What is 3 * 4?\n\nSolution: The answer is 12.", "12")
    assert correct("Question 1: A row?\n3 * 1 = 3\nQuestion 2: All rows?\n3 * 4 = 12", "12")


def test_a_formula_is_read_from_the_end_of_a_sentence() -> None:
    for text, truth in (
        ("The roots are $-7$ and $3$.", "\\{-7,3\\}"),
        ("The set of solutions is all x with x < -2 or x ≥ 3.", "(-\\infty,-2)\\cup[3,\\infty)"),
        ("We get (x + 2)/7, since 7y = x + 2.", "\\frac{x+2}{7}"),
        ("The solutions are:\n- x = 2\n- x = 5", "\\{2,5\\}"),
        ("It is √5 (≈ 2.24) long.", "\\sqrt{5}"),
        ("It is not $x + 1$ but $x - 1$.", "x-1"),
        ("The minimum is −√2, attained at x = π/4.", "-\\sqrt{2}"),
    ):
        assert correct(text, truth), text
    for text, truth in (
        ("The roots are $-7$ and $4$.", "\\{-7,3\\}"),
        ("It is not $x^2 - 1$.", "x^2-1"),
        ("The area is bigger than 9π.", "9\\pi"),
        ("We still have to factor $x^2 - 1$.", "(x-1)(x+1)"),
        ("The number is $1011_3$.", "1011_2"),
    ):
        assert not correct(text, truth), text


def test_words_are_an_answer_where_a_sentence_concludes_with_them() -> None:
    for text in ("So f is **odd**.", "Hence f is odd, as claimed.", "f is odd, not even."):
        assert correct(text, "\\text{odd}"), text
    for text in ("f is not odd.", "If f is odd, it is 0.", "f is neither even nor odd."):
        assert not correct(text, "\\text{odd}"), text


def test_what_is_left_to_do_is_no_number() -> None:
    assert not correct("Each of them gets 57/3 shells.", "19")
    assert not correct("So there are 6 × 7.", "7") and not correct("So it is 10 - 3.", "3")
    assert correct("Each of them gets 7/3 litres.", "7/3")


def test_words_of_an_option_are_found_in_any_order() -> None:
    options = ["Loss of 4%", "Gain of 4%", "Loss of 2%", "Gain of 2%", "No change"]
    assert choices.chosen("So the trader makes a 4% loss.", options) == "A"
    assert choices.chosen("So the trader does not make a 4% loss.", options) is None
    assert choices.chosen("The answer is therefore one of A and C.", options) is None


def test_the_option_that_is_left_is_chosen_where_all_others_are_ruled_out() -> None:
    options = ["6", "8", "9", "10", "12"]
    for text in (
        "All but B are wrong.",
        "A, C, D and E can be ruled out.",
        "It can't be A, C, D, E.",
    ):
        assert choices.chosen(text, options) == "B", text
    assert choices.chosen("| A | wrong |\n| B | right |\n| C | wrong |", options) == "B"
    for text in (
        "A and C are wrong.",
        "A: right\nB: right\nC: wrong",
        "A, B, C, D and E are wrong.",
    ):
        assert choices.chosen(text, options) is None, text


def test_an_option_that_is_refused_or_doubted_is_not_chosen() -> None:
    options = ["6", "8", "9", "10", "12"]
    for text in ("I will not choose B.", "I doubt that it's B.", "I don't think it is B."):
        assert choices.chosen(text, options) is None, text
    assert choices.chosen("There is no doubt that it is B.", options) == "B"
    assert choices.chosen("The answer is B) 9.", options) is None  # 9 is C
    assert choices.chosen("The answer is B) 8.", options) == "B"


def test_what_is_made_of_the_answer_is_not_the_answer() -> None:
    for text in ("Twice the answer is 50.", "My result plus one makes 50."):
        assert not correct(text, "50"), text
    assert correct("Twice the answer is 50, so the answer itself is 25.", "25")
    assert correct("The answer is 30 or 31. As 30 is even, it must be 31.", "31")


def test_formulas_that_are_written_in_another_form_are_equal() -> None:
    for text, truth in (
        ("$\\boxed{\\binom{10}{3}}$", "120"),
        ("They can stand in 5! ways.", "120"),
        ("$\\boxed{9:16}$", "\\frac{9}{16}"),
        ("$\\boxed{\\langle 3,-6\\rangle}$", "\\begin{pmatrix}3\\\\-6\\end{pmatrix}"),
        ("$\\boxed{y=2,\\;x=-3}$", "(x,y)=(-3,2)"),
        ("$\\boxed{x=\\frac{1}{a}\\text{ for } a\\neq 0}$", "\\frac{1}{a}"),
        ("$\\boxed{x\\equiv 3\\pmod{7}}$", "x \\equiv 10 \\pmod 7"),
        ("$\\boxed{\\frac{|{-7}|}{\\sqrt{25}}}=\\frac75$", "\\frac{7}{5}"),
        ("therefore x = frac{2}{3}", "\\frac{2}{3}"),
    ):
        assert correct(text, truth), text
    assert not correct("$\\boxed{y=2,\\;x=-3}$", "(x,y)=(2,-3)")
    assert not correct("$\\boxed{x\\equiv 3\\pmod{7}}$", "x \\equiv 11 \\pmod 7")
    assert not correct("$\\boxed{x < 5, x \\neq 2}$", "x<5")
