"""Which losses of a link are final, and which are worth another attempt."""

from __future__ import annotations

from typing import Optional

from websockets.exceptions import ConnectionClosed, InvalidURI

from oxygen_client.errors import ConnectionLost, ServerError, TakenOver

TAKEN_OVER_CODE = 4409


def fatal_cause(error: Exception) -> Optional[Exception]:
    """Losses after which connecting again would be wrong, as the error that callers get."""
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == TAKEN_OVER_CODE:
        return TakenOver(error.rcvd.reason or "another connection took this session over")
    if isinstance(error, InvalidURI):
        return ConnectionLost(str(error))
    response = getattr(error, "response", None)
    if response is not None and response.status_code in (401, 403, 404):
        reason = bytes(response.body or b"").decode("utf-8", "replace").strip()
        return ServerError("rejected", f"HTTP {response.status_code}: {reason}")
    return None
