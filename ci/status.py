"""The commit status of a gate, set where the settings say so. The token comes from a secret of the build, by name; it is never printed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

TIMEOUT_S = 30


class StatusError(Exception):
    """The status could not be set; the gate's decision stands."""


def post(url: str, token: str, context: str, exit_code: int, text: str, target: str | None = None) -> None:
    """Set state and description. Raises StatusError with the host's answer."""
    body = {"state": "success" if exit_code == 0 else "failure", "context": context, "description": text[:140], **({"target_url": target} if target else {})}
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise StatusError(f"{url}: {error.code} {error.reason}: {error.read(200).decode(errors='replace')}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise StatusError(f"{url}: {error}") from None
