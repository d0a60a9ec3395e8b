"""Pagoda: an LLM inference engine and server."""
