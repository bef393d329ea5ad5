"""The reference in a process that the run starts on its own machine: `reference.kind=process`.

It is `groupwise serve reference` on a free port, with a token that only the run knows. Of several
ranks the first starts it, and all ask it. It ends with the run.
"""

import weakref
from secrets import token_urlsafe

from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.policy.policy import Policy
from groupwise.remote.local_servers import reference_server
from groupwise.remote.reference_client import RemoteReference


def start_reference(
    config: Config, policy: Policy, world: World, *, fresh: bool
) -> RemoteReference:
    own_token = token_urlsafe(24)
    server = reference_server(config, own_token)
    address, token = world.first_does(lambda: [server.start(), own_token])
    settings = config.reference.model_copy(update={"kind": "server", "urls": (address,)})
    try:
        reference = RemoteReference(settings, policy, fresh=fresh, token=token)
    except BaseException:
        server.close()
        raise
    weakref.finalize(reference, server.close)
    return reference
