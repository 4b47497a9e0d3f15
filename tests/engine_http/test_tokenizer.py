"""The tokenizer of a model directory, beside transformers' own reading of it."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from pathlib import Path

import pytest

from vibeserve.engine.chat import ChatTemplate, ChatTemplateError
from vibeserve.engine.tokenizer import Tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Zwölf <b>Füße</b>?"},
    {"role": "assistant", "content": "  Yes \n"},
    {"role": "user", "content": "🙂"},
]


def template(source: str, **tokens: str) -> ChatTemplate:
    return ChatTemplate(source, tokens, lambda: datetime.datetime(2026, 1, 2))


def test_reads_end_tokens_template_and_size(tiny_model):
    tokenizer = Tokenizer.load(tiny_model)
    assert tokenizer.eos_ids == {2}
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.size == 420
    assert tokenizer.is_byte_level
    assert tokenizer.token_bytes[2] == b"<|im_end|>"
    assert all(0 < len(token) <= tokenizer.longest_token_chars for token in tokenizer.backend.get_vocab())


def test_a_directory_without_a_tokenizer_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)


def test_a_broken_tokenizer_is_said(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


def test_a_broken_template_is_said(tiny_model, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{% for message in %}")
    with pytest.raises(ValueError, match="does not compile"):
        Tokenizer.load(folder)


def test_the_jinja_file_comes_before_the_configuration(tiny_model, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{{ eos_token }}")
    loaded = Tokenizer.load(folder).template
    assert loaded is not None
    assert loaded.render([]) == "<|im_end|>"


def test_several_templates_take_the_default(tmp_path):
    entries = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    loaded = ChatTemplate.load(tmp_path, {"chat_template": entries, "eos_token": {"content": "</s>"}})
    assert loaded is not None
    assert loaded.render([]) == "yes"
    assert loaded.tokens == {"eos_token": "</s>"}
    assert ChatTemplate.load(tmp_path, {}) is None


def test_templates_have_what_they_expect():
    source = (
        "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}{{ messages | tojson }}"
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}{{ thinking }}"
    )
    messages = [{"role": "user", "content": "ä<"}, {"role": "user", "content": "b"}]
    text = template(source, bos_token="<s>").render(messages, extra={"thinking": "on"})
    assert text == "<s>2026-01-02" + json.dumps(messages, ensure_ascii=False) + "bon"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.at.all }}", "has no attribute"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|access to attribute"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10000000) %}{% endfor %}", "[Rr]ange"),
    ],
)
def test_what_a_template_may_not_do_is_an_error(source, said):
    with pytest.raises(ChatTemplateError, match=said):
        template(source).render([{"role": "user", "content": "a"}])


def test_equals_transformers(tiny_model):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tiny_model)
    ours = Tokenizer.load(tiny_model)
    compare(ours, theirs)


@pytest.mark.skipif("VIBESERVE_TEST_MODEL" not in os.environ, reason="not run: VIBESERVE_TEST_MODEL is unset")
def test_equals_transformers_on_a_real_model():
    transformers = pytest.importorskip("transformers")
    folder = Path(os.environ["VIBESERVE_TEST_MODEL"])
    compare(Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder))


def compare(ours: Tokenizer, theirs) -> None:
    assert ours.template is not None
    for messages in (TALK, TALK[1:2], TALK[:2]):
        for prompt in (True, False):
            text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.template.render(messages, add_generation_prompt=prompt) == text
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.encode(text, add_special_tokens=False) == ids
    for text in ("", " ", "Hello world", "naïve 🙂\n\n  x", "<|im_end|>", "\x00\ud7ff"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
