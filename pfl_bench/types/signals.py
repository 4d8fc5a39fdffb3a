"""Ends of this process that somebody else asked for."""

import signal
import traceback


def ended_by_signal(error: BaseException) -> bool:
    """Whether an error is what a signal's handler raised, in whatever code it came."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
