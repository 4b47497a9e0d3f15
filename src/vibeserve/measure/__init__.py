"""Launch, health, checker and benchmark runs, paired comparison, statistics, device fingerprint."""
