"""What we add to vLLM's workers (`--worker-extension-cls`): new weights, loaded to the last copy.

vLLM's own `reload_weights` does nearly all. On a CPU an output head that is tied to the embedding
keeps a packed copy of the weights it was started with: vLLM loads the embedding, and never packs
the head again, so answers would go on to be drawn with an old head. Here it is packed again.

Imports nothing of groupwise, and vLLM only where it is called.
"""

from typing import Any


class WeightLoading:
    """A base of vLLM's worker class: `self` is the worker."""

    def groupwise_reload(self, **source: Any) -> None:
        """groupwise_reload(weights_path=FOLDER), or (weights_iterator=(name, tensor) pairs)"""
        worker: Any = self
        worker.reload_weights(**source)
        text = worker.model_config.hf_text_config
        if worker.device.type == "cpu" and getattr(text, "tie_word_embeddings", False):
            repack_heads(worker.get_model())


def repack_heads(model: Any) -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)
