"""The server against requests made from its own OpenAPI document: never a 500, and answers as the document says."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from vibeserve.engine.http import openapi

# What a request means beyond its schema (the context, the vocabulary, fields that need each other) may refuse it, so the
# document's positive cases need not be accepted.
CHECKS = [checks.not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


schema = schemathesis.openapi.from_dict(json.loads(openapi.document()))


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server(case, server):
    case.call_and_validate(base_url=server.url, checks=CHECKS)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_is_as_the_document_says(path, server):
    body = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    body |= {"prompt": "hello"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hello"}]}
    response = (
        schema[path]["POST"]
        .Case(body=body, media_type="application/json")
        .call_and_validate(base_url=server.url, checks=CHECKS)
    )
    assert response.headers["content-type"][0].startswith("text/event-stream")


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server_at_length(case, server):
    case.call_and_validate(base_url=server.url, checks=CHECKS)


def test_the_document_names_every_route_and_field(server):
    document = json.loads(server.get("/openapi.json")[1])
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {
        "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{model}", "/health", "/metrics",
    }  # fmt: skip
    completion = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert {"prompt", "max_tokens", "logprobs", "return_token_ids", "stop"} <= set(completion)
    assert completion["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}


def test_the_server_is_whole_afterwards(server):
    assert server.get("/health")[0] == 200
    server.wait_for(server.idle)
    counted = [
        line for line in server.get("/metrics")[1].decode().splitlines() if line.startswith("http_requests_total")
    ]
    assert counted
    assert not [line for line in counted if 'status="5' in line and "/health" not in line]
