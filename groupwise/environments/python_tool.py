"""The tool `python`: a program that the model writes, run in the sandbox of the code rewards."""

from groupwise.extensions import tool
from groupwise.rewards.code import run_python

SECONDS = 5.0
MOST_CHARACTERS = 4000
"""Of what a program prints; the rest is left out."""

# What went wrong is printed: the sandbox closes standard error.
_PROGRAM = """\
import traceback
try:
    exec(compile({code!r}, "program", "exec"), {{"__name__": "__main__"}})
except Exception as error:
    print("".join(traceback.format_exception_only(error)).strip())
"""


@tool
async def python(code: str) -> str:
    """Runs a Python program and returns what it prints.

    Args:
        code: The program. It has to print its result.
    """
    ran = await run_python(_PROGRAM.format(code=code), seconds=SECONDS)
    output = ran.output.strip()
    if len(output) > MOST_CHARACTERS:
        output = output[:MOST_CHARACTERS] + " ..."
    if ran.exit_code is None:
        return f"{output}\nerror: it was stopped, at {SECONDS:g} seconds or for its output".strip()
    return output or "it printed nothing: use print()"
