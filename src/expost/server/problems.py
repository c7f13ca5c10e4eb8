"""What goes wrong, with the HTTP status that says so. No message quotes data or paths."""

from __future__ import annotations

from typing import Any

from expost.errors import ExpostError


class ServerProblem(ExpostError):
    """A request that the server does not carry out."""

    status = 400

    def __init__(self, error: str, field: str | None = None, valid: str | None = None) -> None:
        self.error, self.field, self.valid = error, field, valid
        super().__init__(error)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the error."""
        return {"error": self.error, "field": self.field, "valid": self.valid}


class NotSignedIn(ServerProblem):
    """No token, or one that is unknown, expired or revoked. All of them read the same."""

    status = 401

    def __init__(self, *, wrong: bool = True) -> None:
        self.wrong = wrong  # a token that was valid once is nobody's guess
        super().__init__("sign in first", "token", "give a token that is valid")


class Denied(ServerProblem):
    """The role of the person does not include the action."""

    status = 403


class NotFound(ServerProblem):
    """There is no such thing, or it belongs to somebody else."""

    status = 404


class Conflict(ServerProblem):
    """The action does not fit what is there already."""

    status = 409


class OverBudget(ServerProblem):
    """The budget cannot pay. Nothing was charged."""

    status = 402


class TooMany(ServerProblem):
    """Too many attempts to sign in."""

    status = 429

    def __init__(self) -> None:
        super().__init__("too many attempts to sign in", None, "wait some minutes, then try again")


class Unavailable(ServerProblem):
    """The server cannot answer at the moment."""

    status = 503
