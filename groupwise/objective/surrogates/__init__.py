"""The surrogates: one file each. A new file with a derived class is all it takes."""

from groupwise.choice import classes_in
from groupwise.objective.surrogates.base import Surrogate, Terms

SURROGATES = classes_in(__name__, Surrogate)

__all__ = ["SURROGATES", "Surrogate", "Terms"]
