"""What an answer's text states at its end, and whether that is the right answer.

`final.py` judges numbers, formulas and words, `choices.py` which option is chosen. They read the
reply (`replies`) by its marks (`tags`) or its last sentences (`sentences`, `statements`, `prose`,
`formulas`), and compare numbers (`quantities`, `number_words`) or, by math-verify, `mathematics`.
"""
