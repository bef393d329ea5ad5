"""A tool server of verifiers 0.4, which starts it as `python -m capitals.atlas`."""

import verifiers.v1 as vf

CAPITALS = {"peru": "Lima", "kenya": "Nairobi", "nepal": "Kathmandu"}


class Atlas(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "atlas"

    @vf.tool
    def capital(self, country: str) -> str:
        """The capital of a country."""
        return CAPITALS.get(country.lower(), "unknown")


if __name__ == "__main__":
    Atlas.run()
