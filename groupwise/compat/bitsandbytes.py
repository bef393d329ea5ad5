"""4-bit layers of bitsandbytes that compute on a CPU as they do everywhere else."""

from typing import Any


def keep_4_bit_layout(model: Any) -> None:
    """Leave weights of 4 bits as they lie.

    On CPUs with bf16 instructions bitsandbytes packs them anew when they are first read without
    gradients, and then computes in bf16: sampling would differ from training, and layers whose
    outputs are no multiple of 32 end in an error.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
