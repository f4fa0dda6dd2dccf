"""How many parameters a model has, against its tensors written out one by one."""

from __future__ import annotations

from hypothesis import given

from meshwright.planning.models import read_model
from meshwright.planning.tensors import count_parameters
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN, described_models, models


@given(models() | described_models())
def test_a_token_goes_through_the_experts_that_it_chose_and_all_that_are_no_experts(model: ModelSpec) -> None:
    count = count_parameters(model)
    if model.num_experts is None:
        assert count.active == count.total
        return
    only = model.model_copy(update={"num_experts": model.num_experts_per_tok})
    assert count.active - count.parts["router"] == count_parameters(only).total - count_parameters(only).parts["router"]


def test_tied_embeddings_are_counted_once() -> None:
    untied, tied = ModelSpec(**PLAIN), ModelSpec(**PLAIN, tie_word_embeddings=True)
    assert count_parameters(untied).total - count_parameters(tied).total == 256 * 64
    assert count_parameters(tied).parts["head"] == 0


def test_what_deepseek_v3s_checkpoint_has_beside_what_is_trained_is_its_correction_of_scores() -> None:
    model = read_model("deepseek3-671b")
    corrections = model.expert_layer_count * (model.num_experts or 0)
    # huggingface.co/deepseek-ai/DeepSeek-V3, without the module that predicts a second token
    assert count_parameters(model).total + corrections == 671_026_419_200
