"""Environments of verifiers' repository (v0.1.14, MIT), as they are there: no tests of ours."""

collect_ignore_glob = ["*.py"]
