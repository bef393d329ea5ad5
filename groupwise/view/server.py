"""The addresses that the page asks. Every answer is a page of a run, never a whole file."""

import json
import pathlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from groupwise.view import scan, settings
from groupwise.view.cards import group_card, text_page, token_page
from groupwise.view.catalog import Catalog
from groupwise.view.comparison import compared
from groupwise.view.guard import Guard
from groupwise.view.open_run import OpenRun, to_json
from groupwise.view.stored_file import open_stored
from groupwise.view.stored_group import Unreadable
from groupwise.view.untrusted import read_summary

STATIC = pathlib.Path(__file__).parent / "static"
PROBLEMS_PAGE = 100
MOST_SHOWN_STEPS = 20_000
MOST_COMPARED = 50
MOST_ANSWERS = 64
SHOWN_AT_FIRST = 6
LONGEST_REPORT = 50_000_000
REPORT_HEADERS = {
    "content-security-policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    )
}


class BadRequest(Exception):
    """An address that makes no sense; the message says what is wrong."""


class Viewer:
    """The state behind the addresses: which runs there are, and those that were opened."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._open: dict[str, OpenRun] = {}
        self._tables: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    def open(self, id: str) -> OpenRun:
        run = self._catalog.get(id)
        if run is None:
            raise Unreadable("there is no such run (any more)")
        with self._lock:
            return self._open.setdefault(id, OpenRun(run))

    def warm(self) -> None:
        """Read the metrics of the runs that a page shows at first, before it asks for them."""
        runs = [self.open(run.id) for run in self._catalog.scan()]
        for run in sorted(runs, key=lambda run: run.idle_seconds() or 0.0)[:SHOWN_AT_FIRST]:
            run.metrics.refresh()

    def runs(self, request: Request) -> Any:
        return {"runs": [self.open(run.id).line() for run in self._catalog.scan()]}

    def metrics(self, request: Request) -> Any:
        stop = _number(request, "stop", -1)
        return self._run(request).metrics.window(
            start=_number(request, "start", 1),
            stop=None if stop < 0 else stop,
            width=_number(request, "width", 1),
        )

    def summary(self, request: Request) -> Any:
        """Metrics of the test problems before and after training, and where the run is."""
        run = self._run(request)
        return {
            **run.held_out.metrics(read_summary(run.run)),
            "folder": str(run.run.path),
            "has_report": run.has("report.html"),
            "models": [name for name in ("model", "best") if run.has(name, "config.json")],
        }

    def held_out(self, request: Request) -> Any:
        query = request.query_params.get("q", "")[:1000]
        return self._run(request).held_out.page(_number(request, "first", 0), query)

    def histograms(self, request: Request) -> Any:
        return self._run(request).distributions.extend()

    def compare(self, request: Request) -> Any:
        """The runs on the same test problems; a single one, before against after."""
        ids = request.query_params.getlist("run")[:MOST_COMPARED]
        return compared([self.open(id) for id in ids])

    def report(self, request: Request) -> Response:
        """report.html of a run. Somebody else may have written it: it can run and load nothing."""
        try:
            with open_stored(self._run(request).run.file("report.html")) as file:
                page = file.read(LONGEST_REPORT)
        except (Unreadable, OSError):
            return PlainTextResponse("This run has no report.\n", 404)
        return Response(page, media_type="text/html", headers=REPORT_HEADERS)

    def steps(self, request: Request) -> Any:
        after = _number(request, "after", 0)
        steps = [step for step in self._run(request).files.steps() if step > after]
        return {"steps": steps[:MOST_SHOWN_STEPS], "more": len(steps) > MOST_SHOWN_STEPS}

    def groups(self, request: Request) -> Any:
        run, wanted = self._run(request), _wanted(request)
        waiting = self._indexing(run, wanted)
        first = _number(request, "first", 0)
        return waiting or scan.step_page(run.files, _step(request), first, wanted, run.problems)

    def group(self, request: Request) -> Any:
        return group_card(self._run(request).files.group(_step(request), _group(request)))

    def tokens(self, request: Request) -> Any:
        run = self._run(request)
        decode = run.decoder()
        if decode is None:
            raise Unreadable("no tokenizer of this run was found, so its tokens have no texts")
        group = run.files.group(_step(request), _group(request))
        answer, first = _number(request, "answer", -1), _number(request, "first", 0)
        every = [answer.index for answer in group.whole_answers[:MOST_ANSWERS]]
        wanted = every if answer < 0 else [answer]
        return {"answers": [token_page(group, one, first, decode) for one in wanted]}

    def text(self, request: Request) -> Any:
        group = self._run(request).files.group(_step(request), _group(request))
        answer, message = (_number(request, name, -1) for name in ("answer", "message"))
        first = _number(request, "first", 0)
        own = (None if n < 0 else n for n in (answer, message))
        return text_page(group, next(own), first, next(own))

    def search(self, request: Request) -> Any:
        run, wanted = self._run(request), _wanted(request)
        after = (_number(request, "step", 0), _number(request, "group", 0))
        waiting = self._indexing(run, wanted)
        return waiting or scan.search(run.files, after, wanted, run.problems)

    def problems(self, request: Request) -> Any:
        """Problems by how much their answers changed, a page at a time."""
        run, first = self._run(request), _number(request, "first", 0)
        coverage = run.problems.extend()
        version, rows = self._tables.get(run.run.id, (-1, []))
        if version != run.problems.version:
            version, rows = run.problems.version, run.problems.table()
            self._tables[run.run.id] = (version, rows)
        query = request.query_params.get("q", "").lower()
        shown = [row for row in rows if query in row["problem"].lower()] if query else rows
        page = [
            {**row, "strip": run.problems.strip(row["problem"])}
            for row in shown[first : first + PROBLEMS_PAGE]
        ]
        return {**_covered(coverage), "total": len(shown), "problems": page}

    def problem(self, request: Request) -> Any:
        """Every appearance of one problem, which is named by a JSON string.

        An address cannot hold every name: a lone surrogate would not survive.
        """
        try:
            name = json.loads(request.query_params.get("id", ""))
        except (ValueError, RecursionError):
            raise BadRequest("id must be a JSON string") from None
        run = self._run(request)
        coverage = run.problems.extend()
        seen = run.problems.history(str(name))
        return {**_covered(coverage), "seen": [one._asdict() for one in seen[:MOST_SHOWN_STEPS]]}

    def settings(self, request: Request) -> Any:
        ids = request.query_params.getlist("run")[:MOST_COMPARED]
        return {"rows": settings.table([self.open(id).settings()[0] for id in ids])}

    def findings(self, request: Request) -> Any:
        return self._run(request).findings.extend()

    def _run(self, request: Request) -> OpenRun:
        return self.open(request.path_params["run"])

    def _indexing(self, run: OpenRun, wanted: scan.Wanted) -> dict[str, Any] | None:
        """A filter that compares with earlier steps has to wait until they are all known."""
        if wanted.filter != "new_best":
            return None
        coverage = run.problems.extend()
        return _covered(coverage) if coverage.covered < coverage.steps else None


def build_app(viewer: Viewer, token: str, names: Iterable[str], cookie: str) -> Guard:
    """The whole application, guarded: build_app(viewer, "s3cret", ["localhost"], "view")"""
    run, step = "/api/runs/{run}", "/api/runs/{run}/steps/{step}"
    answers: dict[str, Callable[[Request], Any]] = {
        "/api/runs": viewer.runs,
        "/api/settings": viewer.settings,
        f"{run}/metrics": viewer.metrics,
        f"{run}/summary": viewer.summary,
        f"{run}/findings": viewer.findings,
        "/api/compare": viewer.compare,
        f"{run}/held_out": viewer.held_out,
        f"{run}/histograms": viewer.histograms,
        f"{run}/search": viewer.search,
        f"{run}/problems": viewer.problems,
        f"{run}/problem": viewer.problem,
        f"{run}/steps": viewer.steps,
        f"{step}/groups": viewer.groups,
        f"{step}/groups/{{group}}": viewer.group,
        f"{step}/groups/{{group}}/tokens": viewer.tokens,
        f"{step}/groups/{{group}}/text": viewer.text,
    }
    routes = [
        Route("/", lambda request: FileResponse(STATIC / "index.html")),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/report/{run}", viewer.report),
        *(Route(path, _answering(answer)) for path, answer in answers.items()),
    ]
    return Guard(Starlette(routes=routes), token, names, cookie)


def _answering(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """An endpoint that starlette runs in a thread, with problems as JSON too."""

    def endpoint(request: Request) -> Response:
        try:
            status, content = 200, answer(request)
        except Unreadable as error:
            status, content = 404, {"error": str(error)}
        except BadRequest as error:
            status, content = 400, {"error": str(error)}
        return Response(to_json(content), status, media_type="application/json")

    return endpoint


def _wanted(request: Request) -> scan.Wanted:
    wanted = scan.Wanted(
        request.query_params.get("q", "")[:1000], request.query_params.get("filter", "")
    )
    if wanted.filter not in scan.FILTERS:
        raise BadRequest(f"filter takes {', '.join(scan.FILTERS[1:])}")
    return wanted


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _whole(name, text)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequest(f"{name} must be a whole number")
    return int(text)


def _step(request: Request) -> int:
    return _whole("step", request.path_params["step"])


def _group(request: Request) -> int:
    return _whole("group", request.path_params["group"])


def _covered(coverage: Any) -> dict[str, Any]:
    return {"indexed": coverage.covered, "steps": coverage.steps}
