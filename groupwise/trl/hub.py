"""`push_to_hub`."""

import pathlib
import tempfile
from typing import Any

from groupwise.errors import ConfigError, ModelError

CARD = ("dataset_name", "model_name", "tags", "language", "license", "finetuned_from", "tasks")
"""What TRL writes into a model card. Ours is not written from them."""


def push_folder(
    trainer: Any, message: str, blocking: bool = True, token: str | None = None,
    revision: str | None = None, **more: Any,
) -> str:  # fmt: skip
    """Save the model to a folder of its own and upload that; returns where it is."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    unknown = [name for name in more if name not in CARD]
    if unknown:
        raise ConfigError(f"push_to_hub has no argument {unknown[0]!r}")
    args = trainer.args
    repository = args.hub_model_id or pathlib.Path(args.output_dir or "model").resolve().name
    api = HfApi(token=token or args.hub_token)
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_model(folder)
        try:
            address = api.create_repo(repository, private=args.hub_private_repo, exist_ok=True)
            api.upload_folder(
                repo_id=address.repo_id,
                folder_path=folder,
                commit_message=message,
                revision=revision or args.hub_revision,
                ignore_patterns=["training_args.bin"],
            )
        except (OSError, HfHubHTTPError, HFValidationError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"cannot upload the model to {repository!r}: {reason}. Sign in with `hf auth "
                "login`, and set hub_model_id to owner/name"
            ) from error
    return str(address)
