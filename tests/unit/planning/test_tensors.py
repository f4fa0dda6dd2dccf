"""How many parameters a model has, against its tensors written out one by one."""

from __future__ import annotations

import pytest

from meshwright.planning.models import read_model
from meshwright.planning.parallelism import MeshAxes
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


@pytest.mark.parametrize(("fsdp", "cut"), [(256, 1), (512, 2)])
def test_fsdp_cuts_the_matrices_of_experts_where_it_divides_them(fsdp: int, cut: int) -> None:
    layers = list_tensors(read_model("qwen3-30b-a3b")).layers
    (down,) = (each for layer in layers for each in layer.tensors if (each.name, each.part) == ("down", "experts"))
    stored, _ = down.place(MeshAxes.of({"fsdp": fsdp}))
    assert [at for at, axes in enumerate(stored) if axes] == [cut]
