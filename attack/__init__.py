"""The fault and attack campaign: seeded, bounded, and it grows by every failure that it finds.

    python -m attack --seed 7 --minutes 5
    python -m attack --kinds recipes,kills --count 1000
    python -m attack --replay attack/kept/some-case.json

Every case is a small JSON file that holds all it needs, so that one command runs it again. Cases in
`attack/kept` are run first; a case that fails is written to `--failures`, to be moved there with
its fix. The bar: no traceback, hang, orphan process, differing hash or lost file.
"""
