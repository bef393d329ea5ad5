"""What every group of settings is: frozen, and without room for a misspelt name."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

LARGEST_INTEGER = 2**63 - 1


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    @field_validator("*")
    @classmethod
    def _can_be_used(cls, value: Any) -> Any:
        """Neither torch nor a file system knows larger integers, or text with a NUL in it."""
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ValueError("must be an integer of at most 64 bits")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("must not hold a NUL character")
        return value
