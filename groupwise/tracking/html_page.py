"""A page that is one file: no network, no script, dark and light, fit to be mailed.

Whatever a model or a dataset wrote goes through `shown`: markup becomes text and control
characters become visible escapes. The page's own policy forbids scripts on top of that.
"""

import html
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; --fg: #1d2330; --soft: #667085; --line: #d9dde5; --bg: #fff;
  --card: #f6f7f9; --good: #0f7b45; --bad: #b42318; --warn: #93590a; --up: 15, 123, 69;
  --down: 180, 35, 24; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e9ef; --soft: #98a2b3; --line: #343b48;
  --bg: #14171d; --card: #1c2029; --good: #4cc38a; --bad: #ff8a7a; --warn: #f2b45c;
  --up: 76, 195, 138; --down: 255, 110, 95; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--fg); background: var(--bg);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.warn { color: var(--warn); }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; }
.wide { overflow-x: auto; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre, .text { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; background: var(--card); border-radius: 6px; padding: .6rem .8rem;
  margin: .4rem 0; }
td .text { margin: 0; padding: .2rem .4rem; }
details { border: 1px solid var(--line); border-radius: 6px; padding: .4rem .8rem;
  margin: .6rem 0; }
summary { cursor: pointer; }
.tokens { line-height: 2; } .tokens span { border-radius: 3px; padding: .1rem 0; }
svg { max-width: 100%; height: auto; } code { font-size: .9em; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document around `parts`, which are HTML already."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{shown(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{"".join(parts)}
</body>
</html>
"""


def shown(text: object, limit: int = 20_000) -> str:
    """Anyone's text as HTML that only ever shows it; very long texts are cut, and say so."""
    whole = str(text)
    cut = whole[:limit]
    visible = "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in cut
    )
    rest = len(whole) - len(cut)
    more = f"\n… {rest:,} more characters" if rest else ""
    return html.escape(visible + more, quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are HTML; the columns in `numbers` are set right."""

    def cell(tag: str, column: int, content: str) -> str:
        kind = ' class="n"' if column in numbers else ""
        return f"<{tag}{kind}>{content}</{tag}>"

    top = "".join(cell("th", i, content) for i, content in enumerate(head))
    lines = "".join(
        f"<tr>{''.join(cell('td', i, content) for i, content in enumerate(row))}</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>\n{lines}</table></div>\n'


def text_block(text: object, limit: int = 20_000) -> str:
    return f'<div class="text">{shown(text, limit)}</div>'
