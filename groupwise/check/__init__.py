"""`groupwise check`: what a recipe will do, before it is trained; `groupwise doctor`: the set-up.

`plan/` plans memory and time on paper; `trial.py` makes one small step with the recipe's model, in
memory; `verdicts.py` judges the trial, each line ok or with a fix; `show.py` prints.
"""
