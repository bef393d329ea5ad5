"""Who may ask the viewer, and for what."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from groupwise.view.guard import is_known_host
from viewer_runs import COOKIE, TOKEN, api, client, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_run(tmp_path_factory.mktemp("guard") / "run")


@pytest.fixture
def stranger(run: pathlib.Path) -> TestClient:
    return client(run, signed_in=False)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/runs", "/nowhere"])
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
def test_nothing_is_served_without_the_token(
    stranger: TestClient, path: str, token: str | None
) -> None:
    response = stranger.get(path, params={} if token is None else {"token": token})
    assert response.status_code == 403 and "groupwise" in response.text
    assert "set-cookie" not in response.headers


def test_a_wrong_cookie_is_no_token(stranger: TestClient) -> None:
    for value in ("wrong", "", '"', "a=b; c"):
        response = stranger.get("/api/runs", headers={"cookie": f"{COOKIE}={value}"})
        assert response.status_code == 403


def test_the_token_moves_from_the_address_into_a_cookie(stranger: TestClient) -> None:
    first = stranger.get(f"/?token={TOKEN}&x=1")
    assert first.status_code == 303 and first.headers["location"] == "/?x=1"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    assert stranger.get("/").status_code == 200
    assert stranger.get("/api/runs").json()["runs"][0]["last_step"] == 3


def test_the_redirect_never_leads_to_another_host(stranger: TestClient) -> None:
    for path in ("//evil.example/x", "/%5Cevil.example", "/%2F%2Fevil.example"):
        location = stranger.get(f"http://localhost{path}?token={TOKEN}").headers["location"]
        assert location.startswith("/") and location[1:2] not in ("/", "\\")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "localhost@evil"])
def test_a_name_that_is_not_ours_is_refused_even_with_the_token(
    run: pathlib.Path, host: str
) -> None:
    response = client(run).get("/api/runs", headers={"host": host})
    assert response.status_code == 400 and "runs" not in response.text


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8642"])
def test_our_own_names_and_numbers_are_known_on_any_port(run: pathlib.Path, host: str) -> None:
    assert client(run).get("/api/runs", headers={"host": host}).status_code == 200


@given(st.from_regex(r"[a-z0-9-]{1,12}\.[a-z]{2,6}", fullmatch=True), st.integers(0, 99999))
def test_no_domain_passes_for_one_of_our_names(domain: str, port: int) -> None:
    tricks = [domain, f"localhost.{domain}", f"127.0.0.1.{domain}", f"localhost@{domain}"]
    tricks += [f"{trick}:{port}" for trick in tricks] + [f"[{domain}]", f"{domain}:localhost"]
    assert not any(is_known_host(trick, {"localhost"}) for trick in tricks)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_the_viewer_only_reads(run: pathlib.Path, method: str) -> None:
    assert client(run).request(method, "/api/runs").status_code == 405


def test_other_pages_cannot_fetch_with_our_cookie(run: pathlib.Path) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert client(run).get("/api/runs", headers=headers).status_code == status


def test_every_answer_carries_the_protecting_headers(run: pathlib.Path) -> None:
    for path in ("/", "/static/app.js", "/api/runs", f"{api(run)}/metrics", "/nowhere"):
        headers = client(run).get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
