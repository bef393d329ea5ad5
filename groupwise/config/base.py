"""What every group of settings is: frozen, and without room for a misspelt name."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from groupwise.errors import ConfigError

LARGEST_INTEGER = 2**63 - 1


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            raise ConfigError(
                f"{name} cannot be assigned: settings stay as they are. Make changed ones: "
                "config = config.replace(steps=10), or of a block: config.replace(batch="
                '{"prompts": 8})'
            )
        super().__setattr__(name, value)

    @field_validator("*")
    @classmethod
    def _can_be_used(cls, value: Any) -> Any:
        """Neither torch nor a file system knows larger integers, or text with a NUL in it."""
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ValueError("must be an integer of at most 64 bits")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("must not hold a NUL character")
        return value
