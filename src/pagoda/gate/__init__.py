"""The gate: what a weight or KV format does to one model, measured before anyone trusts it; docs/quality.md explains.

    evaluate(subjects, work) -> Report -> verdicts, kept by fingerprint -> `auto` takes the smallest format that passed

Knows models, formats and text; knows nothing of engine and cache, which change no bit. The engine knows nothing of it.
"""
