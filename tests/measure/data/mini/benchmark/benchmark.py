"""The smallest benchmark: a closed loop of a few threads for a window of time; counts ids that arrived within it."""

import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
import urllib.parse


class Worker(threading.Thread):
    def __init__(self, args: argparse.Namespace, number: int):
        super().__init__(daemon=True)
        self.args, self.words = args, random.Random(f"{args.seed}/{number}")
        self.latencies: list[float] = []
        self.tokens = 0
        self.errors: list[str] = []

    def run(self) -> None:
        parts = urllib.parse.urlsplit(self.args.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.args.timeout)
        # At least one answer, however busy the machine: the rate is taken over the time that it really took.
        while (time.monotonic() < self.args.end or not self.latencies) and not self.errors:
            prompt = f"say {self.words.random()}"
            body = json.dumps({"prompt": prompt, "max_tokens": self.args.max_tokens, "return_token_ids": True})
            begin = time.monotonic()
            try:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200 or "json" not in response.headers.get("Content-Type", ""):
                    raise ValueError(f"status {response.status}, {response.headers.get('Content-Type')}")
                ids = json.loads(response.read())["choices"][0]["token_ids"]
                if len(ids) != self.args.max_tokens:
                    raise ValueError(f"{len(ids)} tokens instead of {self.args.max_tokens}")
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                return
            if time.monotonic() <= self.args.end or not self.latencies:
                self.tokens += len(ids)
                self.latencies.append(time.monotonic() - begin)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model-dir")
    parser.add_argument("--output-json", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh-seed", type=int)
    parser.add_argument("--window", "--duration", dest="duration", type=float, default=2.0)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=5.0)
    args = parser.parse_args()
    args.end = time.monotonic() + args.duration
    workers = [Worker(args, number) for number in range(args.concurrency)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = max(args.duration, time.monotonic() - args.end + args.duration)
    latencies = [value for worker in workers for value in worker.latencies]
    errors = [error for worker in workers for error in worker.errors]
    with open(args.output_json, "w") as file:
        json.dump(
            {
                "requests": len(latencies) + len(errors),
                "failed": len(errors),
                "errors": errors,
                "duration_s": seconds,
                "output_tokens_per_s": sum(worker.tokens for worker in workers) / seconds,
                "p50_latency_s": statistics.median(latencies) if latencies else None,
            },
            file,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
