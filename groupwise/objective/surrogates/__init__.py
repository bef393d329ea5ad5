"""The surrogates: one file each. A new file with a derived class is all it takes."""

from typing import TYPE_CHECKING

from groupwise.objective.choice import known, one_of
from groupwise.objective.surrogates.base import Surrogate, Terms

SURROGATES = known(Surrogate, __name__)

if TYPE_CHECKING:
    AnySurrogate = Surrogate
else:
    AnySurrogate = one_of(Surrogate, "surrogate", SURROGATES)

__all__ = ["SURROGATES", "AnySurrogate", "Surrogate", "Terms"]
