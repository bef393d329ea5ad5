"""Servers that all tests of real vLLM share: each takes half a minute to start."""

from collections.abc import Iterator

import pytest

from real_vllm import Running, Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("vllm")) as servers:
        yield servers


@pytest.fixture
def server(servers: Servers) -> Running:
    """One that takes whole weights."""
    return servers.ready(1)[0]


@pytest.fixture
def adapter_server(servers: Servers) -> Running:
    """One that takes adapters."""
    return servers.ready_for_adapters()
