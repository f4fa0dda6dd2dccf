"""How many parameters a model has, against its tensors written out one by one."""

from __future__ import annotations

from meshwright.planning.models import read_model
from meshwright.planning.tensors import count_parameters, list_tensors
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN


def test_tied_embeddings_are_counted_once() -> None:
    untied, tied = ModelSpec(**PLAIN), ModelSpec(**PLAIN, tie_word_embeddings=True)
    assert count_parameters(untied) - count_parameters(tied) == 256 * 64
    assert list_tensors(tied).measure("head") == 0


def test_what_deepseek_v3s_checkpoint_has_beside_what_is_trained_is_its_correction_of_scores() -> None:
    model = read_model("deepseek3-671b")
    corrections = model.expert_layer_count * (model.num_experts or 0)
    # huggingface.co/deepseek-ai/DeepSeek-V3, without the module that predicts a second token
    assert count_parameters(model) + corrections == 671_026_419_200
