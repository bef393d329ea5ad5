"""`groupwise check`: what a recipe will do, before it is trained.

`plan/` and `costs.py` plan memory and time on paper; `batch_plan.py` reads the recipe; `doctor.py`
checks the set-up; `trial.py` makes one small
step with its model, in memory; `verdicts.py` says what the trial foretells, each line ok or with a
fix.
"""
