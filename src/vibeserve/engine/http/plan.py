"""From a request to a plan: prompts as ids, sampling, stop strings and what the answer shall carry.

Everything that can be wrong with a request is found here, before the engine sees it, and named by its field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..chat import RESERVED, ChatTemplateError
from ..errors import RequestError
from ..tokenizer import Tokenizer
from ..types import Limits, SamplingParams
from .errors import ApiError, invalid, unsupported
from .formats import grammar_for
from .messages import content_text, conversation
from .schema import ChatRequest, Common, CompletionRequest
from .tools import Tools, tools_for

if TYPE_CHECKING:
    from ..constraints import Constraints

DEFAULT_COMPLETION_TOKENS = 16  # the completions API's own default
SMALLEST_TOP_P = 1e-9  # `top_p` 0 is allowed by the API and means the likeliest token


@dataclass(frozen=True)
class ServedModel:
    """The model behind the API: its names (the first is the one that is told), tokenizer and limits."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    limits: Limits
    created_s: int
    fingerprint: str
    constraints: Constraints | None = None

    @property
    def name(self) -> str:
        """The model's id in answers."""
        return self.names[0]


@dataclass(frozen=True)
class Prompt:
    """One prompt: its ids, and its text where the answer repeats it."""

    ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True)
class Plan:
    """What to run and how to answer. There are `len(prompts) * n` choices; choice i belongs to prompt i // n."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    prediction_ids: tuple[int, ...] = ()
    grammar: str = ""
    priority: int = 0
    tools: Tools | None = None
    n: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    usage_in_chunks: bool = False
    return_token_ids: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    nothing_to_sample: bool = False
    fields: dict[str, str] = field(default_factory=dict)
    """The engine's names of fields → the API's, for errors that the engine finds."""

    def params_of(self, choice: int) -> SamplingParams:
        """The sampling of one choice: with a seed, each of the n choices of a prompt draws from its own stream."""
        which = choice % self.n
        if not which or self.params.seed is None:
            return self.params
        seed = self.params.seed + which
        return replace(self.params, seed=seed if seed < 2**63 else seed - 2**64)


def check_model(name: str | None, model: ServedModel) -> None:
    """404 for a model that is not served; no name means the one that is."""
    if name is not None and name not in model.names:
        message = f"The model `{name[:200]}` does not exist; this server has `{model.name}`."
        raise ApiError(404, message, param="model", code="model_not_found")


def plan_completion(request: CompletionRequest, model: ServedModel) -> Plan:
    """The plan of a completions request. Raises ApiError."""
    check_model(request.model, model)
    _refuse(request, ("suffix",))
    n = request.n or 1
    if request.best_of is not None and request.best_of != n:
        raise unsupported("best_of", f"`best_of` other than `n` ({n})")
    prompts = _prompts(request, model)
    room = _room(prompts, model, "prompt")
    given = request.max_tokens
    wanted = _answer_tokens(given, min(DEFAULT_COMPLETION_TOKENS, room), room, "max_tokens", prompts, model)
    scored = bool(request.echo) and request.logprobs is not None
    params = _sampling(request, model, wanted, request.logprobs, prompt_logprobs=scored)
    return _plan(request, prompts, params, model, n=n, echo=bool(request.echo), nothing_to_sample=wanted == 0)


def plan_chat(request: ChatRequest, model: ServedModel) -> Plan:
    """The plan of a chat request. Raises ApiError."""
    check_model(request.model, model)
    _refuse(request, ("functions", "audio", "web_search_options"))
    if request.function_call not in (None, "none", "auto"):
        raise unsupported("function_call")
    if request.modalities not in (None, ["text"]):
        raise unsupported("modalities", "Any output but text in `modalities`")
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    tools = tools_for(request.tools, request.tool_choice, request.parallel_tool_calls is not False, model.constraints)
    if tools is not None and request.response_format not in (None, {"type": "text"}):
        raise unsupported("response_format", "`response_format` beside tools")
    prompts = (_chat_prompt(request, model, tools),)
    room = _room(prompts, model, "messages")
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    given = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if given == 0:
        raise invalid(f"`{name}` must be at least 1.", name)
    wanted = _answer_tokens(given, room, room, name, prompts, model)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    params = _sampling(request, model, wanted, logprobs, prompt_logprobs=False)
    names = {"max_tokens": name, "prompt": "messages"}
    plan = _plan(request, prompts, params, model, n=request.n or 1, names=names)
    return plan if tools is None else replace(plan, tools=tools, grammar=tools.grammar)


def _plan(
    request: Common,
    prompts: tuple[Prompt, ...],
    params: SamplingParams,
    model: ServedModel,
    *,
    n: int,
    echo: bool = False,
    nothing_to_sample: bool = False,
    names: dict[str, str] | None = None,
) -> Plan:
    most = model.limits.max_waiting
    if n * len(prompts) > most:
        message = f"`n` × prompts asks for {n * len(prompts)} answers; this server takes at most {most} at once."
        raise invalid(message, "n" if len(prompts) == 1 else "prompt")
    stop = request.stop
    options = request.stream_options
    return Plan(
        prompts=prompts,
        params=params,
        prediction_ids=_prediction(request, model),
        grammar=grammar_for(request.response_format, model.constraints),
        priority=request.priority or 0,
        n=n,
        stops=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        usage_in_chunks=bool(options and options.continuous_usage_stats),
        return_token_ids=bool(request.return_token_ids),
        skip_special_tokens=request.skip_special_tokens is not False,
        echo=echo,
        nothing_to_sample=nothing_to_sample,
        fields=names or {},
    )


def _prediction(request: Common, model: ServedModel) -> tuple[int, ...]:
    """The expected answer as ids, as far as an answer can reach. Raises ApiError."""
    if request.prediction is None:
        return ()
    text = content_text(request.prediction.content, "prediction.content")
    most = model.limits.max_model_len
    # Longer than any answer: the rest could never be used.
    return tuple(
        model.tokenizer.encode(text[: most * model.tokenizer.longest_token_chars], add_special_tokens=False)[:most]
    )


def _refuse(request: Common, names: Sequence[str]) -> None:
    """Fields of the API that this server does not have: refused where they ask for something."""
    for name in names:
        if getattr(request, name) not in (None, [], {}, ""):
            raise unsupported(name)


def _sampling(
    request: Common, model: ServedModel, max_tokens: int, logprobs: int | None, *, prompt_logprobs: bool
) -> SamplingParams:
    """Sampling as the engine wants it. An answer of no tokens is asked for as one that is thrown away."""
    if logprobs is not None and logprobs > model.limits.max_logprobs:
        name = "logprobs" if isinstance(request, CompletionRequest) else "top_logprobs"
        raise invalid(f"`{name}` is {logprobs}; at most {model.limits.max_logprobs} are served.", name)
    try:
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else max(request.top_p, SMALLEST_TOP_P),
            top_k=max(request.top_k or 0, 0),
            min_p=request.min_p or 0.0,
            repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            seed=request.seed,
            max_tokens=max(max_tokens, 1),
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
            stop_token_ids=_stop_ids(request, model),
            logit_bias=_bias(request, model),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
    except RequestError as error:
        raise invalid(f"{error.message}.", error.field) from error


def _stop_ids(request: Common, model: ServedModel) -> tuple[int, ...]:
    for at, token in enumerate(request.stop_token_ids or ()):
        _check_id(token, f"stop_token_ids[{at}]", model)
    return tuple(request.stop_token_ids or ())


def _bias(request: Common, model: ServedModel) -> tuple[tuple[int, float], ...]:
    found = {}
    for key, value in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise invalid(f"`logit_bias` has the key {key[:40]!r}, which is no token id.", "logit_bias")
        _check_id(int(key), "logit_bias", model)
        found[int(key)] = value
    return tuple(sorted(found.items()))


def _check_id(token: int, name: str, model: ServedModel) -> None:
    if token >= model.limits.vocab_size:
        message = f"`{name}` has the token id {token}; the vocabulary ends at {model.limits.vocab_size - 1}."
        raise invalid(message, name.split("[", maxsplit=1)[0])


def _room(prompts: Sequence[Prompt], model: ServedModel, name: str) -> int:
    """Tokens that are left for the answer to the longest prompt. 400 where there are none."""
    context = model.limits.max_model_len
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest >= context:
        raise _over_context(longest, context, name)
    return context - longest


def _over_context(tokens: int, context: int, name: str, *, at_least: bool = False) -> ApiError:
    count = f"at least {tokens}" if at_least else str(tokens)
    message = (
        f"This model's context is {context} tokens, and `{name}` has {count}; at least one must be left to answer."
    )
    return invalid(message, name, "context_length_exceeded")


def _answer_tokens(
    given: int | None, default: int, room: int, name: str, prompts: Sequence[Prompt], model: ServedModel
) -> int:
    """`max_tokens`, checked against the room that is left."""
    if given is None:
        return default
    if given > room:
        context = model.limits.max_model_len
        message = f"`{name}` is {given}, but this model's context is {context} tokens and the prompt has {context - room}: at most {room} fit."
        raise invalid(message, name, "context_length_exceeded")
    return given


def _encode(text: str, model: ServedModel, name: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Ids of a text. One that is too long whatever its tokens is refused without being encoded."""
    least = len(text) // max(model.tokenizer.longest_token_chars, 1)
    if least > model.limits.max_model_len:
        raise _over_context(least, model.limits.max_model_len, name, at_least=True)
    return tuple(model.tokenizer.encode(text, add_special_tokens=add_special_tokens))


def _prompts(request: CompletionRequest, model: ServedModel) -> tuple[Prompt, ...]:
    """A text, a list of texts, ids, or a list of lists of ids."""
    given = request.prompt
    if isinstance(given, str):
        found = [_text_prompt(given, model, bool(request.echo))]
    elif all(isinstance(item, int) for item in given):
        found = [_id_prompt(given, model, bool(request.echo))]  # type: ignore[arg-type]
    elif all(isinstance(item, str) for item in given):
        found = [_text_prompt(item, model, bool(request.echo)) for item in given]  # type: ignore[arg-type]
    elif all(isinstance(item, list) for item in given):
        found = [_id_prompt(item, model, bool(request.echo)) for item in given]  # type: ignore[arg-type]
    else:
        raise invalid("`prompt` mixes texts and token ids; it must be all of one kind.", "prompt", "invalid_type")
    if not all(prompt.ids for prompt in found):
        raise invalid("`prompt` is empty: there must be at least one token.", "prompt")
    return tuple(found)


def _text_prompt(text: str, model: ServedModel, echo: bool) -> Prompt:
    return Prompt(_encode(text, model, "prompt", add_special_tokens=True), text if echo else None)


def _id_prompt(ids: Sequence[int], model: ServedModel, echo: bool) -> Prompt:
    if len(ids) >= model.limits.max_model_len:
        raise _over_context(len(ids), model.limits.max_model_len, "prompt")
    if ids and max(ids) >= model.limits.vocab_size:
        _check_id(max(ids), "prompt", model)
    return Prompt(tuple(ids), model.tokenizer.decode(ids) if echo else None)


def _chat_prompt(request: ChatRequest, model: ServedModel, tools: Tools | None) -> Prompt:
    template = model.tokenizer.template
    if template is None:
        raise invalid("This model has no chat template; use /v1/completions.", "messages", "no_chat_template")
    extra = request.chat_template_kwargs or {}
    for name in RESERVED:
        if name in extra:
            raise invalid(f"`chat_template_kwargs` may not set `{name}`.", "chat_template_kwargs")
    listed = tools.documents() if tools is not None else []
    messages = conversation(request.messages, listed, knows_tools=template.knows_tools)
    generation = request.add_generation_prompt is not False
    try:
        text = template.render(messages, add_generation_prompt=generation, extra=extra, tools=listed)
    except ChatTemplateError as error:
        raise invalid(f"The chat template refuses these messages: {error}.", "messages") from error
    ids = _encode(text, model, "messages", add_special_tokens=False)
    if not ids:
        raise invalid("`messages` make an empty prompt: there must be at least one token.", "messages")
    return Prompt(ids)
