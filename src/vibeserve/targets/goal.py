"""A goal in plain English, read as metric, direction, load, lengths and limits; and said back before anything is written."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.targets.numerals import digits, spelled
from vibeserve.targets.wording import joined, placed, set_aside, upper_ends

_DATA = Path(__file__).with_name("goal.toml")
_NUMBER = r"((?<![\w.])\d++(?:\.\d++)?+\s?[kKM]?(?![a-zA-Z]))"
_PERCENTILE = (
    r"\bp(50|90|95|99)\b(?!\.\d)|\b(50|90|95|99)(?:th)?[- ](?:percentile|pct|%)|\b(50|90|95|99) ?(?:%|percent|per cent) of (?:the time|cases)"
    r"|\b(50|90|95|99) ?(?:%|percent|per cent) of (?:the |all |our |my |their )?(?:requests|answers|calls|users|replies|responses|queries|chats|customers|people|messages|completions|times?)"
    r"|\b(50|90|95|99) ?(?:%|percent|per cent) of (?!the prompt|prompts|tokens)(?:\w+ ){1,4}(?=[^.;]{0,40}?\d ?(?:ms|s|secs?|seconds?|min)\b)|\bfor (50|90|95|99) ?(?:%|percent|per cent)(?! (?:more|less|faster|of (?:the prompt|prompts|tokens)))"
)
_FEW = (  # "only 1% may take longer than", "at most 5 percent slower than"
    r"\b(?:only|at most|(?:no|not) more than|(?:fewer|less) than|under|max(?:imum)?)(?: of)? (1|5|10) ?(?:%|percent|per cent) (?:[a-z]+ ){0,6}?"
    r"(?:longer|slower|later|more|above|over|exceed\w*|miss\w*|wait\w*|worse)\b"
)
_NO_PROMPT = (  # what an answer is called, and what is no text at all: "answers of 200 tokens", "batches of 8"
    r"(?:answer|completion|output|response|repl[iy]|generation|summar|edit|stor[iy]|essay|post|description|translation|poem|label|classif|verdict|decision|caption|title|keyword|"
    r"batch|per|prefix|preamble|header|second|minute|hour|user|client|stream|session)"
)
_WORST = r"\b(tail|worst|slowest|nobody|no one|every (?:answer|request|reply|response|call|user|customer|page|image) (?:must|should|has to|needs to))\b"
_MEASURED = (50, 90, 95, 99)  # the percentiles that the benchmarks report
_MOST_AT_ONCE = 10000  # a batch of more than these is a job, no load
_LONG = 32000  # prompt tokens from which on a workload is one of long context
_BARE = r"(?i)p\d\d|tail|(the )?(median|mean|average)|\d\d(th)? percentile|in (less than|under|at most|no more than)"
_LIMIT = (
    r"(?:under|below|less than|(?:no|not) (?:over|above|later than)|(?:lower|higher|worse|slower|greater|bigger|later) than|within|inside|at most|(?:no|not|never) more than|<=?|≤|max(?:imum)?(?: of)?|faster than|(?<=there )after|(?<=ready )after|(?<=done )after|(?<=back )after"
    r"|stays? (?:under|below)|(?:going|goes|go|rising|getting|climbing) (?:above|over|beyond)|(?:never|not) (?:above|over)|exceed(?:s|ing)?|longer than|up to"
    r"|down to|(?:capped|cap) (?:at|of)|bounded by|limited to|(?:budget|target|ceiling|sla|slo|goal|limit|deadline)(?: of| is|:)?|\bin)"
)
_SECONDS = r"(\d+(?:\.\d+)?)\s*(ms|msec|milliseconds?|s|secs?|seconds?|min|minutes?)\b"
_PER_TIME = r"(?:\s*/\s*|\s+(?:per|a|an|each|every)\s+)(s|sec|second|min|minute|h|hr|hour|day)\b"
_ASKED = (
    r"(?:req(?:uest)?s?|quer(?:y|ies)|calls?|images?|imgs?|pictures?|clips?|videos?|edits?|prompts?|completions?|transcriptions?|"
    r"messages?|chats?|conversations?|questions?|tickets?|mails?|emails?|jobs?|hits|embeddings?|vectors?|documents?|docs?|passages?|sentences?|answers?|texts?|objects?|pages?|files?|"
    r"utterances?|clicks|transactions?|inferences?|invocations?|generations?|summaries)"
    r"(?:\s+(?:arrive|arriving|come|coming|are sent|in))?"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a goal was read as. Rates are requests a second, lengths tokens, limits seconds; None: not said.

    `limit` is the metric's own, `bound` says another quantity's where that is no part of an SLO.
    """

    goal: str
    metric: str | None
    direction: str | None
    rate: float | None = None
    concurrency: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    shared_prefix_tokens: int | None = None
    limit: float | None = None
    bound: str | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    features: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def vague(self) -> bool:
        """Whether it must be asked for again: nothing says what is measured."""
        return self.metric is None

    def said_back(self, inputs: str = "prompts", answers: str = "answers") -> str:
        """The reading in one sentence; `inputs` and `answers` are what the contract calls them, empty where they have no length."""
        if self.metric is None:
            return "no metric was found in the goal"
        load = (
            f"{self.rate:g} requests/s" if self.rate is not None
            else f"{self.concurrency} at once" if self.concurrency is not None else "a load of our choice"
        )  # fmt: skip
        prompt = f"{self.prompt_tokens}-token {inputs}" if self.prompt_tokens else f"{inputs} of a default length"
        output = f"{self.output_tokens}-token {answers}" if self.output_tokens else f"{answers} of a default length"
        shared = f" after {self.shared_prefix_tokens} shared tokens" if self.shared_prefix_tokens else ""
        lengths = [*([prompt + shared] if inputs else []), *([output] if answers else [])]
        limit = f", to stay within {self.limit:g} s" if self.limit is not None else ""
        limit += f", with {self.bound}" if self.bound else ""
        slo = [
            f"{n} at most {v:g} s" for n, v in (("ttft", self.slo_ttft_s), ("tpot", self.slo_tpot_s)) if v is not None
        ]
        limit += f", SLO: {' and '.join(slo)}" if slo else ""
        return f"{self.metric}, {self.direction} is better{limit}; {', '.join([load, *lengths])}"


@cache
def _quantities() -> list[dict[str, Any]]:
    return list(tomllib.loads(_DATA.read_text(encoding="utf-8"))["quantity"])


def read_goal(goal: str, *, default_shape: str = "text") -> Reading:
    """Read a goal. `default_shape` is the modality's name: a workload that has one number by nature may go without.

    An empty or vague goal gives a reading whose `metric` is None.
    """
    said = " ".join(goal.replace("→", "->").split())
    text, respelled = spelled(digits(placed(said)))
    text = re.sub(r"(?i)\btoks?\b(?!\s*(?:/|per\b))", "tokens", text)
    text = re.sub(
        r"(?i)(?:\b(?:about|around|roughly|approx(?:imately|\.)?|circa|ca\.|avg\.?|averaging)|~|≈)\s*(?=\d)", "", text
    )
    text, ranges = upper_ends(text)
    text, sums = joined(text)
    concurrency, rate = _concurrency(text), _rate(text)
    shared, rest = _shared(text)
    prompt, output = _lengths(rest, shared is not None)
    text, ignored = set_aside(text)
    limits = _limits(text)
    quantity, notes = _objective(text, limits)
    notes += [*respelled, *ranges, *sums, *(f"'{words}' is left out of what is optimised" for words in ignored)]
    metric, direction, limit, bound = None, None, None, None
    slo: dict[str, float] = {}
    if quantity is not None:
        metric, direction = _name(quantity, text, notes), quantity["better"]
        for name, seconds in limits:
            if name == quantity["name"]:
                limit = seconds
            elif name in ("ttft_s", "tpot_s", "itl_s"):
                slo["ttft" if name == "ttft_s" else "tpot"] = seconds
            else:
                bound = f"{_percentile(text) or 'p50'}_{name} at most {seconds:g} s"
        _say_back_direction(text, quantity, notes)
    load_said = concurrency is not None or rate is not None
    missing = [
        *(["metric"] if metric is None else []), *([] if load_said else ["load"]),
        *([] if prompt or output or shared else ["lengths"]),
    ]  # fmt: skip
    return Reading(
        goal=said, metric=metric, direction=direction, rate=rate, concurrency=concurrency, prompt_tokens=prompt,
        output_tokens=output, shared_prefix_tokens=shared, limit=limit, bound=bound, slo_ttft_s=slo.get("ttft"),
        slo_tpot_s=slo.get("tpot"), features=_features(text, prompt), missing=tuple(missing), notes=tuple(notes),
    )  # fmt: skip


def _number(text: str) -> float:
    clean = text.strip()
    if clean[-1:] == "M":
        return float(clean[:-1]) * 1e6
    if clean[-1:] in "kK":
        value = float(clean[:-1])
        return value * (1024 if value in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) else 1000)
    return float(clean)


def _first(patterns: list[str], text: str) -> re.Match[str] | None:
    return next((hit for pattern in patterns if (hit := re.search(pattern, text, re.I))), None)


def _rate(text: str) -> float | None:
    """Requests a second."""
    hit = _first(
        [
            rf"(?<!at least ){_NUMBER}\s*(?:[a-z]+ )?{_ASKED}{_PER_TIME}",
            rf"(?:\bat|\bof|@|,|^|load|traffic|rate|lambda|λ)[: ]*{_NUMBER}{_PER_TIME}",
        ],
        text,
    )
    if hit is not None:
        per = hit.group(2).lower()
        seconds = 60 if per.startswith("m") else 3600 if per.startswith("h") else 86400 if per.startswith("d") else 1
        return _number(hit.group(1)) / seconds
    said = r"(?:rps|qps|(?:request|arrival|query|input) rate|arrivals? (?:with )?(?:rate|lambda|λ)|lambda|λ|--rate|rate(?= ?[=:]))"
    hit = re.search(
        rf"{_NUMBER}\s*(?:rps|qps|hz)\b|\b{said}\s*(?:of|=|:|is|at)?\s*{_NUMBER}(?!\s*(?:m?s|%|tok))", text, re.I
    )
    if hit is not None:
        return _number(hit.group(1) or hit.group(2))
    every = rf"(?:request|query|call|prompt|message|question|image|clip)s? (?:\w+ )?(?:once )?every (?:{_NUMBER} ?(ms|s|seconds?|min|minutes?)|(second|minute))\b"
    if hit := re.search(every, text, re.I):
        unit = (hit.group(2) or hit.group(3)).lower()
        each = float(hit.group(1) or 1) * (1e-3 if unit == "ms" else 60 if unit.startswith("min") else 1)
        return 1 / each if each else None
    return None


def _concurrency(text: str) -> int | None:
    hit = _first(
        [
            rf"\b(?:concurrency|batch(?: sizes?)?)\s*(?:levels? )?(?:of|=|:|from|between)?\s*\d+\s*(?:to|-|–|and|up to|\.\.)\s*{_NUMBER}",
            rf"{_NUMBER}[- ]?(?:[a-z]+[- ])?(?:conc\b|concurren(?:t|cy)|simultaneous|parallel)",
            rf"{_NUMBER}\s*(?:requests?|prompts?|calls?|queries|images?)(?: [\w-]+){{1,4}} (?:at once|at the same time|simultaneously|in parallel|together)\b",
            rf"{_NUMBER}\s*(?:[a-z]+ )?(?:users?|clients?|customers|streams?|sessions?|agents|workers|callers|doctors|listeners|speakers|readers|players|visitors|testers|analysts|engineers|operators|vus|dev(?:eloper)?s|people|co-?workers|colleagues|employees|students|channels?|lines|(?:(?!tokens)\w+ )?(?:requests? )?(?:(?:run |are (?:run |served )?|all )?(?:together|side by side)|at once|at a time|in flight|at the same time|in parallel))",
            rf"{_NUMBER} of us\b",
            rf"{_NUMBER}\s*of (?:them|us|my|our|those|these)(?: \w+){{0,4}} (?:at once|at the same time|simultaneously|in parallel)",
            rf"(?:concurrency|parallelism|batch(?:es(?= of \d++(?! [a-z]+s\b))|[ _-]?sizes?)?|\bbs)\s*(?:level |limit )?(?:of|=|:|is|at)?\s*{_NUMBER}",
            rf"{_NUMBER}\s*(?:conversations|dialog(?:ue)?s|chats)\b(?!\s*(?:per|a|each|every|/))",
            rf"\b(?:bs|b|c|users|clients|streams|in[- ]flight) ?[=:] ?{_NUMBER}",
        ],
        text,
    )  # fmt: skip
    if hit is not None and _number(hit.group(1)) <= _MOST_AT_ONCE:
        return int(_number(hit.group(1)))
    alone = r"\b(single|one)[- ](user|stream|requests?|client|session|dev(?:eloper)?|person|customer|caller)\b|\bone (?:\w+ )?at[- ]a[- ]time\b|\bone[- ]at[- ]a[- ]time\b|\bsequential(ly)?\b|\binteractive, alone\b"
    return 1 if re.search(alone, text, re.I) else None


def _shared(text: str) -> tuple[int | None, str]:
    """The length of a shared prefix, and the text without the words that say it."""
    kind = r"(?:shared|common|same|identical|system|reused)"
    hit = _first(
        [
            rf"{_NUMBER}[- ]?(?:tokens?)?\s+(?:long\s+)?{kind}\s+(?:\w+\s+)?(?:prefix|prompt|context|document)",
            rf"{kind}\s+(?:\w+\s+)?(?:prefix|prompt|context|document)(?:es|s)?\s+(?:of|with|:)\s+(?:about\s+)?{_NUMBER}(?:\s*tokens?)?",
            rf"{kind}\s+{_NUMBER}[- ]?tokens?\s+(?:long\s+)?(?:\w+\s+)?(?:prefix|prompt|context|document|preamble|text)",
            rf"\b(?:same|common|shared|identical)\s+{_NUMBER}[- ]?tokens?[- ](?!in\b|out\b|answer|output)[a-z]+",
            rf"(?:repeat|reuse|resend)\w*\s+(?:the (?:same |first |previous )?)?{_NUMBER}[- ]?tokens?",
            rf"{_NUMBER}[- ]?tokens? (?:of (?:shared |common |prior |previous )?(?:history|prefix|preamble|system prompt|instructions)|prefix(?:es)?)\b",
            rf"(?:prefix|system prompt|preamble|history)\s*(?:len(?:gth)?|size)?\s*(?:of|=|:|is|\()\s*{_NUMBER}(?:\s*tokens?)?",
            rf"{_NUMBER}[- ](?:tokens? )?(?:long )?(?:system )?prefix",
            rf"{_NUMBER}\s*{kind}\s+tokens?",
            rf"reus\w+\s+(?:the\s+|an?\s+|one\s+)?{_NUMBER}[- ]?tokens?",
            rf"shar\w+\s+(?:the\s+|an?\s+|one\s+)?(?:first\s+|same\s+|common\s+)?{_NUMBER}[- ]?tokens?",
            rf"{_NUMBER}[- ]?tokens?(?: of \w+)? (?:(?:that|which) (?:is|are) )?(?:shared|reused|repeated) (?:by|across|between|among|in)\b",
            r"\b(?:same|common|shared|identical|shar(?:e|es|ing) (?:the|an?|one)) (\d+(?:\.\d+)?\s?k) [a-z]+",
        ],
        text,
    )
    return (int(_number(hit.group(1))), text[: hit.start()] + text[hit.end() :]) if hit else (None, text)


def _lengths(text: str, shared: bool) -> tuple[int | None, int | None]:
    """(prompt tokens, output tokens)."""
    pair = _first(
        [
            rf"(?<!batch )(?<!bs ){_NUMBER}\s*(?:tokens?\s*)?(?:in(?:put)?|prompt)(?:\s*tokens?)?\s*(?:/|,|and|->|x)?\s*{_NUMBER}\s*(?:tokens?\s*)?(?:out(?:put)?|generated|completion|new)",
            rf"(?:^|[,;(:]\s*){_NUMBER}\s*(?:/|->|:|\+)\s*{_NUMBER}(?=\s*(?:[,;.)]|tokens?|$))(?!\s*(?:tokens? )?(?:/|per))",
            rf"\({_NUMBER}\s*,\s*{_NUMBER}\)",
            rf"\b(?:in(?:put)?|prompt)(?:[ _-]?(?:len(?:gth)?|tokens|size))?\s*[=:]?\s*{_NUMBER}(?:\s*tokens?)?\s*[,;/ ]\s*(?:and )?(?:out(?:put)?|gen(?:eration)?|answer|completion|decode)(?:[ _-]?(?:len(?:gth)?|tokens|size))?\s*[=:]?\s*{_NUMBER}",
            rf"\bisl\s*[=:]?\s*{_NUMBER}\D{{1,12}}osl\s*[=:]?\s*{_NUMBER}",
            rf"\b{_NUMBER}\s*/\s*{_NUMBER}\s*tokens?\b",
            r"(?<!\S)(\d{3,}|\d+(?:\.\d+)?\s?k)/(\d{2,}|\d+(?:\.\d+)?\s?k)(?=\s*(?:[,;.)]|$))",
            rf"{_NUMBER} tokens? each\b.{{1,60}}?{_NUMBER} tokens? each\b",
            rf"{_NUMBER}\s*tokens?\s*(?:to|->|into)\s*(?:about )?{_NUMBER}\s*tokens?\b",
            rf"{_NUMBER}\s*(?:unique|new|own|fresh|different|divergent)(?: tokens?)?\s*(?:in)?[,/]?\s*(?:and )?{_NUMBER}\s*out\b",
            rf"(?:prompts?|inputs?|\bin)\s*(?:len(?:gth)?s?|size)?\s*(?:of|=|:|is)?\s*{_NUMBER}(?:\s*tokens?)?\s*[,;/]?\s*(?:and\s+)?(?:outputs?|answers?|completions?|out)\s*(?:len(?:gth)?s?|size)?\s*(?:of|=|:|is)?\s*{_NUMBER}",
        ],
        text,
    )  # fmt: skip
    if pair:
        return int(_number(pair.group(1))), int(_number(pair.group(2)))
    said = r"(?:chat |short |long |streamed |code |json |plain |typical )*"
    is_about = r"(?:of|with|=|:|is|are|has|have|having|average|averages|averaging|avg|up to|around|\()?"
    out = _first(
        [
            rf"{_NUMBER}[- ]?(?:output|new|generated|completion|max(?:imum)?)[- ]tokens?",
            rf"{_NUMBER}[- ]?tokens?[- ]{said}(?:completions?|outputs?|responses?|answers?|generations?|replies|summar\w+|edits?|stor(?:y|ies)|essays?|posts?|descriptions?|translations?|poems?|labels?|(?:tool |function )calls?|classifications?|verdicts?|decisions?|captions?|titles?|keywords)",
            rf"(?:generat\w+|decod\w+|output\w*|answers?|completions?|responses?|(?:tool|function) calls?|repl(?:y|ies)|produc\w+|summar\w+|max[- _](?:new[- _])?tokens|edits?)\s*(?:of|with|=|:|is|\()?\s*(?:up to |about |around |at most )?{_NUMBER}\s*(?:new |output )?tokens?",
            rf"{_NUMBER}\s*tokens?\s*(?:each\b|(?:per|for each|for every) (?:request|answer|call|completion|reply))",
            rf"{_NUMBER}\s*(?:tokens?\s*)?out\b",
            rf"\b(?:in)?to {_NUMBER}\s*tokens?\b",
            rf"(?:outputs?|completions?|max[- _](?:new[- _])?tokens)\s*(?:len(?:gth)?|size)?\s*(?:of|=|:|is)?\s*{_NUMBER}(?!\s*(?:[a-z]+ )?(?:per|/|a) )",
            rf"(?:outputs?|completions?|answers?|replies|responses?|generations?)\s+{is_about}\s*(?:of |about |around |only )?{_NUMBER}(?!\s*(?:[a-z]+ )?(?:per|/|a) |\s*(?:m?s|secs?|seconds?|minutes?|%|req\w*|rps|qps|users?)\b)(?=\s*(?:[,;.)]|tokens?|$))",
            rf"(?:stop\w*|limit\w*|cap\w*|cut\w*|truncat\w*)(?: \w+){{0,3}}? (?:after|at|to) {_NUMBER}\s*tokens?\b",
            rf"(?:writ\w+|produc\w+|generat\w+|emit\w*|return\w*) (?:about |around |some )?{_NUMBER}\s*tokens?\b(?!\s*(?:/|per|a ))",
        ],
        text,
    )  # fmt: skip
    prompt = _first(
        [
            rf"{_NUMBER}[- ]?(?:tokens? )?(?:input|prompt|context)[- ]tokens?",
            rf"{_NUMBER}[- ]?tokens?[- ](?:long )?{said}(?:[A-Za-z]+ )?(?:prompts?|inputs?|contexts?|documents?|files?|articles?|reports?|e?-?mails?|transcripts?|papers?|books?|pages?|tickets?|questions?)",
            r"(?<![\w.])(\d+(?:\.\d+)?\s?k)[- ]prompt\b",
            rf"\b(?:the|an?|each|every) {_NUMBER}[- ](?:long )?(?:prompts?|inputs?|contexts?)\b",
            rf"{_NUMBER}\s*tokens? of (?:context|input|prompt)",
            r"(?:^|[,;] ?)(\d+(?:\.\d+)?\s?k)(?: context)?(?=\s*(?:[,;.]|$))",
            rf"\b(?:history|histories|conversations?|transcripts?|contexts?|threads?|prompts?|inputs?) (?:[a-z]+ ){{0,3}}?(?:to|of|at) (?:about )?{_NUMBER}\s*tokens?",
            *([rf"\b(?:then|plus|followed by|and|\+) {_NUMBER} (?:new|fresh|unique|own|different)[- ]tokens?"] if shared else []),
            r"(?:for|with|at|on|using) (\d+(?:\.\d+)?\s?k)[- ](?:long )?(?:prompts?|inputs?|contexts?)\b(?! (?:of|with) \d)",
            rf"(?:prompts?|inputs?|contexts?|documents?|files?|questions?|messages?)\s*{is_about}\s*(?:up to |about |around |only )?{_NUMBER}\s*tokens?",
            rf"(?:prompts?|inputs?|contexts?|questions?)\s+{is_about}\s*(?:of |about |around |only )?{_NUMBER}(?=\s*(?:[,;.)]|$| and ))(?!\s*(?:m?s|users?)\b)",
            r"(?:^|[,;(:]\s*)(\d+(?:\.\d+)?\s?k)[- ](?:long |input )?(?:prompts?|inputs?|contexts?)\b(?! (?:of|with) \d)",
            r"\b(?:with|over|from|using|at) (\d+(?:\.\d+)?\s?k|\d{4,})[- ]?tokens?\b(?! (?:each|out|output|per|a|of (?:output|answers?)|answers?|completions?|replies|responses?|generat\w+)|\s*/)",
            rf"{_NUMBER}[- ](?:token )?(?:long )?context",
            rf"{_NUMBER}[- ]?tokens? (?:of )?(?:code(?! edit)(?:bases?)?|text|source|material)\b",
            rf"{_NUMBER}\s*tokens?\s*(?:per|for each|in each|for every) (?:document|doc|text|passage|prompt|page|file|chunk|sentence)\b",
            rf"{_NUMBER}\s*tokens? in\b",
            rf"{_NUMBER}\s*in\b(?=\s*(?:[,;.]|$))",
            rf"(?:chunk|text|document|passage|page|file)s? (?:size|length)s?\s*(?:of|=|:|is)?\s*{_NUMBER}",
            rf"\bat {_NUMBER}\s*tokens?\b(?!\s*(?:/|per|a ))",
            rf"\b(?!{_NO_PROMPT})[a-z]+s (?:of |with |\()(?:up to )?{_NUMBER}[- ]?tokens?",
            rf"{_NUMBER}[- ]tokens?[- ](?:(?!{_NO_PROMPT})[a-z]+ )?(?!{_NO_PROMPT})[a-z]{{3,}}s\b",
            rf"{_NUMBER}[- ]?tokens?[- ](?:unique |own |fresh |different |divergent )?(?:suffix|question|query|tail|continuation)\b",
            rf"(?:prompts?|inputs?|context|sequences?)\s*(?:len(?:gth)?|size)?\s*(?:of|=|:|is)?\s*{_NUMBER}(?!\s*(?:[a-z]+ )?(?:per|/|a) )(?=\s*(?:[,;.)]|tokens?|$))",
        ],
        text,
    )  # fmt: skip
    if prompt and out and prompt.start(1) == out.start(1):  # "chats of 200-token answers" names one length
        names = r"(?i)\b(?:history|histories|conversations?|transcripts?|contexts?|threads?|prompts?|inputs?)\b"
        answers = re.search(r"(?i)\banswer|output|repl|completion|generat", out.group(0))
        prompt, out = (prompt, None) if (shared or re.search(names, prompt.group(0))) and not answers else (None, out)
    if out is None and prompt and re.search(r"(?i)prompts?|inputs?|contexts?", prompt.group(0)):
        rest = rf"(?<!/)(?<!per ){_NUMBER}[- ]?tokens?\b(?!\s*(?:/|per\b|a ))(?!(?: \w+)? (?:in|new|unique|questions?|quer(?:y|ies)|documents?|prefix|contexts?|system|history|files?|pages?|chunks?|suffix\w*|tails?)\b)"
        others = [hit for hit in re.finditer(rest, text, re.I) if not prompt.start() <= hit.start() < prompt.end()]
        out = others[0] if len(others) == 1 else None  # of two lengths the one that is not the prompt's
    if out is None:  # a bound on tokens that names nothing else is one on the answer
        bound = rf"(?:at most|max(?:imum)?(?: of)?|up to|no more than|no longer than) {_NUMBER}\s*(?:new )?tokens?\b(?! (?:in\b|input|prompt|of (?:context|input|prompt)|per|a second))(?!\s*/)"
        taken = prompt.start(1) if prompt else -1
        out = next((hit for hit in re.finditer(bound, text, re.I) if hit.start(1) != taken), None)
    return (int(_number(prompt.group(1))) if prompt else None), (int(_number(out.group(1))) if out else None)


def _limits(text: str) -> list[tuple[str, float]]:
    """Bounds that are put on a quantity: (quantity, seconds)."""
    timed = [q for q in _quantities() if q["better"] == "lower"]
    behind = [(q["name"], re.compile(rf"\s(?:p\d\d )?({q['pattern']})", re.I)) for q in timed]
    ahead = [
        (
            q["name"],
            re.compile(rf"({q['pattern']})( sla| slo| target| limit| budget| goal)?( of| is|:| ?=| at)?\s*$", re.I),
        )
        for q in timed
    ]
    found = []
    for hit in re.finditer(rf"({_LIMIT})?\s*(?<![\d.]){_SECONDS}", text, re.I):
        unit = hit.group(3).lower()
        seconds = float(hit.group(2)) * (60 if unit.startswith("min") else 1e-3 if unit.startswith("m") else 1)
        for_first = r"(?i)[^,;.]{0,20}\b(?:for|until|till|before) (?:the |a )?first (?:token|word)"
        named = (
            "ttft_s"
            if re.match(for_first, text[hit.end() :])
            else next(
                (
                    n
                    for n, p in behind
                    if (after := p.match(text, hit.end())) and not re.fullmatch(_BARE, after.group(1))
                ),
                None,
            )
        )
        if named is not None or (
            named := next((n for n, p in ahead if _names(p, text[: hit.start()])), None)
        ):  # "500 ms TTFT", "40 ms per token"
            found.append((named, seconds))
        elif (
            hit.group(1)
            or re.match(
                r"\s*(max(imum)?|at (the )?(most|latest)|or (less|better|faster|under|below)|tops|after|budget|limit|target|ceiling|sla|slo)\b",
                text[hit.end() :],
                re.I,
            )
            or re.search(rf"(?:{_PERCENTILE})( of| is|:| =| at)?\s*$", text[: hit.start()], re.I)
        ):
            found.append((_bounded(text[: hit.start()], text[hit.end() : hit.end() + 30], timed), seconds))
    speed = r"(\d+(?:\.\d+)?) ?tok(?:en)?s? ?(?:/|per) ?s(?:ec(?:ond)?)? ?(?:/|per|(?:for|to) (?:each|every)(?: one)?(?: of)?(?: \d+)?) ?\w+"
    alone = r"(?:each|every)(?: \w+){0,5}? (\d+(?:\.\d+)?) ?tok(?:en)?s? ?(?:/|per) ?s(?:ec(?:ond)?)?\b"
    if per_user := re.search(speed, text, re.I) or re.search(alone, text, re.I):
        found.append(("tpot_s", 1 / float(per_user.group(1))))
    return found


def _names(pattern: re.Pattern[str], before: str) -> bool:
    """Whether a text ends with a quantity; a bare percentile may belong to another one before it."""
    hit = pattern.search(before)
    return hit is not None and not re.fullmatch(_BARE, hit.group(1))


def _bounded(before: str, after: str, timed: list[dict[str, Any]]) -> str:
    """The quantity that a bound between these two texts belongs to: the nearest one before it, else one after it."""
    nearest: tuple[int, str] | None = None
    for quantity in timed:
        for place in re.finditer(quantity["pattern"], before, re.I):
            # A bare percentile belongs to the quantity beside it.
            end = place.end() - (30 if re.fullmatch(_BARE, place.group(0)) else 0)
            if nearest is None or end > nearest[0]:
                nearest = (end, quantity["name"])
    if nearest is not None and len(before) - nearest[0] <= 70:
        return nearest[1]
    for quantity in timed:
        if re.match(rf"\W*(?:for |of )?(?:\w+ )?(?:{quantity['pattern']})", after, re.I):
            return str(quantity["name"])
    return nearest[1] if nearest else "latency_s"


def _objective(text: str, limits: list[tuple[str, float]]) -> tuple[dict[str, Any] | None, list[str]]:
    """The quantity that is optimised: one that a verb asks for, else one without a bound, else the bounded one."""
    notes: list[str] = []
    without_load = re.sub(
        rf"(?<!at least )\b(?:at )?{_NUMBER}\s*(?:[a-z]+ )?{_ASKED}{_PER_TIME}", " ", text, flags=re.I
    )
    without_load = re.sub(
        rf"{_NUMBER}\s*(?:rps|qps)\b|\b(?:rps|qps)\s*(?:of|=|:)?\s*{_NUMBER}", " ", without_load, flags=re.I
    )
    found: list[tuple[int, dict[str, Any], bool]] = []
    spans: list[tuple[int, int]] = []
    for order, quantity in enumerate(_quantities()):
        for hit in re.finditer(quantity["pattern"], without_load, re.I):
            bare = re.fullmatch(_BARE, hit.group(0)) is not None
            if not any(start <= hit.start() < end for start, end in spans):  # the same words say one thing
                found.append((hit.start() * 100 + order, quantity, bare))
                spans.append(hit.span())
    # "TTFT p99": a bare percentile is no quantity of its own beside one that has percentiles.
    if any(q["percentiles"] and not bare for _, q, bare in found):
        found = [item for item in found if not item[2]]
    if not found and limits:  # "the page must be there within 2 s"
        return next(q for q in _quantities() if q["name"] == limits[0][0]), notes
    if not found:
        return None, notes
    verb = r"(?:maximi[sz]\w+|minimi[sz]\w+|optimi[sz]\w+|improv\w+|benchmark|measure|reduc\w+|lower|best|highest|lowest|headline|metric|cut|shorten|increase|raise|boost)"
    bounded = {name for name, _ in limits}
    asked = [
        min(near, key=lambda item: item[0])
        for place in re.finditer(verb, without_load, re.I)
        if (near := [i for i in found if i[0] // 100 >= place.start() and i[0] // 100 - place.end() <= 40])
    ]
    free = [item for item in found if item[1]["name"] not in bounded]
    chosen = asked[0][1] if asked else min(free or found, key=lambda item: item[0])[1]
    crowd = r"(number of|most|max(imum)?|as many|how many) (concurrent |simultaneous |parallel )?(users|clients|streams|sessions)"
    if (
        chosen["name"] == "request_throughput"
        and bounded & {"ttft_s", "tpot_s", "itl_s"}
        and re.search(crowd, text, re.I)
    ):
        chosen = next(q for q in _quantities() if q["name"] == "goodput")
        notes.append("as many users as the limits allow is read as goodput: requests a second within them")
    if asked:
        return chosen, notes
    others = {item[1]["name"] for item in found} - {chosen["name"]} - bounded
    if others:
        notes.append(f"also named: {', '.join(sorted(others))}; they are reported beside it")
    return chosen, notes


def _name(quantity: dict[str, Any], text: str, notes: list[str]) -> str:
    if not quantity["percentiles"]:
        return str(quantity["name"])
    other = re.search(r"\bp(\d\d(?:\.\d+)?)\b|\b(\d\d(?:\.\d+)?)th percentile", text, re.I)
    if named := _percentile(text):
        percentile = named
    elif other:
        asked = float(other.group(1) or other.group(2))
        percentile = f"p{next((p for p in _MEASURED if p >= asked), _MEASURED[-1])}"
        notes.append(f"{other.group(0)} is not measured: {percentile} is the headline, the nearest that is")
    elif slowest := re.search(rf"\b(?:slowest|worst) (1|5|10) ?%|{_FEW}", text, re.I):
        percentile = f"p{100 - int(slowest.group(1) or slowest.group(2))}"
    elif re.search(r"\b(mean|average|avg)\b", text, re.I):
        percentile = "mean"
    elif tail := re.search(_WORST, text, re.I):
        percentile = "p99"
        notes.append(f"'{tail.group(1)}' is read as p99")
    else:
        percentile = "p50"
        if not re.search(r"\b(median|typical)\b", text, re.I):
            notes.append("no percentile is named: the median (p50) is the headline, p95 and p99 are reported beside it")
    return f"{percentile}_{quantity['name']}"


def _percentile(text: str) -> str:
    """The first percentile that a text names, as `p95`; empty where it names none."""
    hit = re.search(_PERCENTILE, text, re.I)
    return f"p{next(group for group in hit.groups() if group)}" if hit else ""


def _say_back_direction(text: str, quantity: dict[str, Any], notes: list[str]) -> None:
    up = re.search(
        r"\b(maximi[sz]e|increase|raise|highest)\s+(?:the\s+)?(?:\w+\s+){0,2}(latency|ttft|tpot|itl|response time|p\d\d)",
        text,
        re.I,
    )
    down = re.search(
        r"\b(minimi[sz]e|reduce|lowest|lower)\s+(?:the\s+)?(?:\w+\s+)?(throughput|goodput|tokens)", text, re.I
    )
    if quantity["better"] == "lower" and up:
        notes.append(f"'{up.group(0)}' is read as: as low as possible, since latency is better when it is lower")
    if quantity["better"] == "higher" and down:
        notes.append(f"'{down.group(0)}' is read as: as high as possible, since throughput is better when it is higher")


def _features(text: str, prompt: int | None) -> tuple[str, ...]:
    table = {
        "chat": r"\bchat\w*|conversation\w*|assistant", "streaming": r"\bstream\w*|live|real-?time",
        "shared-prefix": r"\bprefix|shared (?:long )?(?:system )?prompt|prompt[- ]cach|same (?:system prompt|document)",
        "long-context": r"\blong[- ]contexts?|long (?:prompts?|documents?|inputs?)|\b(?:32|64|100|128|200|256)k\b|needle in a haystack",
        "json": r"\bjson|schema|structured output|constrained", "code-edit": r"\bcode[- ]edit|predicted[- ]output|refactor",
        "bursty": r"\bburst\w*|spik\w+",
    }  # fmt: skip
    long = ("long-context",) if prompt is not None and prompt >= _LONG else ()
    return tuple(dict.fromkeys((*(name for name, pattern in table.items() if re.search(pattern, text, re.I)), *long)))
