"""The smallest checker: token ids of a few prompts against what the fake server must answer, alone and twice."""

import argparse
import http.client
import json
import random
import sys
import urllib.request
import zlib


def expected(prompt: str, count: int) -> list[int]:
    root = zlib.crc32(json.dumps([prompt, 0]).encode())
    return [zlib.crc32(index.to_bytes(4, "little"), root) % 32_000 for index in range(count)]


def ask(url: str, prompt: str, count: int, timeout: float) -> list[int]:
    body = json.dumps({"prompt": prompt, "max_tokens": count, "temperature": 0, "return_token_ids": True}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        if "json" not in response.headers.get("Content-Type", ""):
            raise ValueError(f"content type {response.headers.get('Content-Type')}")
        return json.loads(response.read())["choices"][0]["token_ids"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model-dir")
    parser.add_argument("--output-json", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=5.0)
    args = parser.parse_args()
    cases = []
    words = random.Random(args.seed)
    for number in range(4):
        prompt = f"prompt {words.random()}"
        try:
            ok, detail = ask(args.url, prompt, 8, args.timeout) == expected(prompt, 8), "token ids differ"
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            ok, detail = False, f"{type(error).__name__}: {error}"
        cases.append({"name": f"greedy-{number}", "ok": ok, "detail": "" if ok else detail})
    passed = all(case["ok"] for case in cases)
    with open(args.output_json, "w") as file:
        json.dump({"passed": passed, "cases": cases}, file)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
