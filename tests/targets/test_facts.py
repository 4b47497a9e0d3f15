"""Counts out of config.json and the safetensors headers."""

from __future__ import annotations

import json

import pytest
from tests.targets import checkpoints as made

from vibeserve.base.errors import InputError
from vibeserve.targets import model_facts


def test_counts_of_a_tiny_llama_by_hand(tmp_path):
    facts = model_facts(made.llama(tmp_path))
    attention = made.HIDDEN * made.HEAD_DIM * (2 * made.HEADS + 2 * made.KV_HEADS)
    layer = attention + 3 * made.HIDDEN * made.INTERMEDIATE + 2 * made.HIDDEN
    table = made.VOCAB * made.HIDDEN
    assert facts.parameters == made.LAYERS * layer + 2 * table + made.HIDDEN
    assert facts.matmul_parameters == made.LAYERS * (attention + 3 * made.HIDDEN * made.INTERMEDIATE) + table
    assert facts.flops_per_token == 2 * facts.matmul_parameters
    assert facts.weight_bytes["float32"] == 4 * facts.parameters == facts.stored_dtypes["float32"]
    assert facts.weight_bytes["bfloat16"] == 2 * facts.parameters
    assert facts.kv_bytes_per_token("float32") == 2 * made.LAYERS * made.KV_HEADS * made.HEAD_DIM * 4
    assert facts.attention_flops_per_token(10) == 4 * made.LAYERS * made.HEADS * made.HEAD_DIM * 10
    assert (facts.architecture, facts.vocab, facts.tied_embeddings) == ("LlamaForCausalLM", made.VOCAB, False)


def test_a_tied_embedding_is_counted_once_and_multiplied(tmp_path):
    facts = model_facts(made.llama(tmp_path, tied=True))
    assert facts.tied_embeddings
    flat = (2 * made.LAYERS + 1) * made.HIDDEN
    assert facts.matmul_parameters == facts.parameters - flat


@pytest.mark.parametrize("cut", [0, 4, 40, 1000])
def test_a_cut_file_is_named(tmp_path, cut):
    path = made.llama(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        model_facts(tmp_path)


def test_no_config_and_no_weights(tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        model_facts(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2})
    )
    with pytest.raises(InputError, match=r"no \.safetensors"):
        model_facts(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config\.json"):
        model_facts(tmp_path)
