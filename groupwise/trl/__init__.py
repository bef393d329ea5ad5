"""TRL's GRPOTrainer and GRPOConfig on groupwise's loop: change one import and keep the script.

    from groupwise.trl import GRPOConfig, GRPOTrainer        # in place of: from trl import ...

What a field means in TRL it means here, or it is refused with the reason (docs/trl.md).
"""

from groupwise.trl.config import GRPOConfig
from groupwise.trl.trainer import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]
