"""The engine room: requests in, events out; in between, plans for the runner. No arrays, no HTTP."""

from pagoda.engine.admission import validate
from pagoda.engine.doors import Runner, Tokenizer
from pagoda.engine.engine import Engine, Health
from pagoda.engine.streams import EventStream, iterate, stream

__all__ = ["Engine", "EventStream", "Health", "Runner", "Tokenizer", "iterate", "stream", "validate"]
