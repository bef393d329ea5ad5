"""`groupwise check`: what a recipe will do, before it is trained.

`costs.py` plans memory and time on paper; `plan.py` reads the recipe; `trial.py` makes one small
step with its model, in memory; `verdicts.py` says what the trial foretells, each line ok or with a
fix.
"""
