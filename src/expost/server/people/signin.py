"""Signing in: sessions, the headers of a trusted proxy, the first owner.

A session is a random value in an HttpOnly, SameSite=Strict cookie; the database holds its digest.
The CSRF value of a session is derived from it, so that it needs no table. A proxy signs
``user\\nrole\\ntime`` with HMAC-SHA256; its headers are accepted for one minute, and only to begin
a session. The first owner is made through a link that works once.

An OpenID provider is asked by authorization code with PKCE, state and nonce. A cookie with a random
value binds its answer to the browser that left; state, nonce and the PKCE verifier are derived from
it, so that they need no table. The ID token is verified with the keys of the provider (asymmetric
algorithms only): issuer, audience, expiry and nonce. A person is known by issuer and subject, never
by a name or an address that they may choose.
Tests: ``tests/server/test_security.py``, ``tests/server/test_openid.py``.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sql

from expost.errors import InvalidInput, MissingExtra
from expost.server import audit_log
from expost.server.database import ServerDatabase, links, people, profiles, sessions, tokens
from expost.server.people.accounts import (
    ANALYST,
    AUDITOR,
    MAIL,
    OWNER,
    ROLES,
    People,
    Person,
    check_group,
    check_name,
    quick_hash,
    write_profile,
)
from expost.server.problems import Conflict, Denied, NotSignedIn, Unavailable
from expost.server.server_settings import OutsideSettings, check_url

COOKIE = "expost_session"
SESSION_SECONDS = 12 * 3600.0
LINK_SECONDS = 24 * 3600.0
PROXY_SECONDS = 60.0
_VALUE = re.compile(r"[0-9A-Za-z_-]{43}")


class SignIn:
    """Who a caller is."""

    def __init__(
        self, store: ServerDatabase, members: People, proxy_key: bytes | None = None
    ) -> None:
        self._store, self._people, self._proxy_key = store, members, proxy_key

    def begin(self, person: Person) -> str:
        """Begin a session and return the value of its cookie."""
        value, now = secrets.token_urlsafe(32), time.time()

        def work(connection: sql.Connection) -> None:
            connection.execute(sessions.delete().where(sessions.c.expires <= now))
            connection.execute(
                sessions.insert().values(
                    hash=quick_hash(value),
                    person=person.name,
                    token=person.token,
                    created=now,
                    expires=now + SESSION_SECONDS,
                )
            )

        self._store.write(work)
        return value

    def by_cookie(self, value: str) -> Person:
        """Return the person of a session."""
        if not _VALUE.fullmatch(value):
            raise NotSignedIn
        row = self._store.row(
            sql.select(
                sessions,
                people.c.role,
                people.c.disabled,
                tokens.c.revoked,
                tokens.c.expires.label("token_expires"),
            )
            .join(people, people.c.name == sessions.c.person)
            .outerjoin(tokens, tokens.c.id == sessions.c.token)
            .where(sessions.c.hash == quick_hash(value))
        )
        if row is None or row["disabled"] or row["revoked"]:
            raise NotSignedIn
        if min(row["expires"], row["token_expires"] or row["expires"]) <= time.time():
            raise NotSignedIn
        return Person(row["person"], row["role"], row["token"], csrf_of(value))

    def end(self, value: str) -> None:
        """End a session."""
        self._store.change(sessions.delete().where(sessions.c.hash == quick_hash(value)))

    def by_proxy(self, headers: Mapping[str, str], address: str) -> Person:
        """Return the person whom a trusted proxy vouches for; a new name becomes a person."""
        name, role = headers.get("x-expost-user", ""), headers.get("x-expost-role", "")
        moment, given = headers.get("x-expost-time", ""), headers.get("x-expost-signature", "")
        if self._proxy_key is None or not self._proxy_signed(name, role, moment, given):
            self._people.check_limit(address)
            self._people.failed(address)
            raise NotSignedIn
        row = self._store.row(sql.select(people).where(people.c.name == name))
        if row is None:
            self._people.add(name, role, "the proxy")
        elif row["disabled"] or row["role"] != role:
            raise NotSignedIn
        return Person(name, role)

    def _proxy_signed(self, name: str, role: str, moment: str, given: str) -> bool:
        """Whether the headers are signed, fresh and well formed."""
        assert self._proxy_key is not None
        wanted = proxy_signature(self._proxy_key, name, role, moment)
        if not hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace")):
            return False
        fresh = moment.isascii() and moment.isdigit() and len(moment) < 12
        if not fresh or abs(time.time() - int(moment)) > PROXY_SECONDS or role not in ROLES:
            return False
        try:
            check_name(name)
        except InvalidInput:
            return False
        return True

    def first_link(self, *, again: bool = False) -> str | None:
        """Return a new secret for the first owner; None if there is an owner, unless ``again``."""
        value, now = secrets.token_urlsafe(32), time.time()

        def work(connection: sql.Connection) -> bool:
            owner = sql.select(people).where(people.c.role == OWNER, people.c.disabled.is_(False))
            if connection.execute(owner).first() is not None and not again:
                return False
            connection.execute(links.delete())  # an older link stops working
            connection.execute(
                links.insert().values(
                    hash=quick_hash(value), expires=now + LINK_SECONDS, used=False
                )
            )
            return True

        return value if self._store.write(work) else None

    def use_link(self, value: str, name: str, address: str) -> Person:
        """Make the first owner; a link works once."""
        check_name(name)

        def work(connection: sql.Connection) -> bool:
            changed = connection.execute(
                links.update()
                .where(
                    links.c.hash == quick_hash(value),
                    links.c.used.is_(False),
                    links.c.expires > time.time(),
                )
                .values(used=True)
            )
            if not changed.rowcount:
                return False
            taken = sql.select(people).where(people.c.name == name)
            if connection.execute(taken).first() is not None:
                raise Conflict("there is a person with this name already", "name", "another name")
            connection.execute(
                people.insert().values(name=name, role=OWNER, created=time.time(), disabled=False)
            )
            audit_log.record(connection, name, "first owner", {"name": name})
            return True

        if not self._store.write(work):
            self._people.check_limit(address)
            self._people.failed(address)
            raise NotSignedIn
        return Person(name, OWNER)


def csrf_of(cookie: str) -> str:
    """Return the CSRF value of a session."""
    return hmac.digest(cookie.encode(), b"expost csrf", "sha256").hex()


def proxy_signature(key: bytes, name: str, role: str, moment: str) -> str:
    """Return the signature that a proxy puts into ``X-Expost-Signature``."""
    text = f"{name}\n{role}\n{moment}".encode("utf-8", "replace")
    return hmac.digest(key, text, "sha256").hex()


OPENID_COOKIE = "expost_sign_in"
OPENID_SECONDS = 600
CALLBACK = "/sign-in/callback"
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_LEEWAY, _TIMEOUT, _FRESH = 60, 10.0, 3600.0
_PROVIDER = "the OpenID provider"
log = logging.getLogger("expost.server")


class OpenID:
    """The provider of a server, and the people whom it vouches for."""

    def __init__(self, settings: OutsideSettings, store: ServerDatabase) -> None:
        try:
            import authlib.integrations.httpx_client  # noqa: F401
            import joserfc.jwt  # noqa: F401
        except ImportError:
            raise MissingExtra("authlib", "oidc") from None
        self._settings, self._store = settings.oidc, store
        self._back, self._secret = settings.address + CALLBACK, settings.oidc_secret
        self._known: tuple[float, dict[str, Any], Any] | None = None

    def _client(self) -> Any:
        from authlib.integrations.httpx_client import OAuth2Client

        return OAuth2Client(
            self._settings["client"],
            self._secret,
            scope="openid profile email",
            redirect_uri=self._back,
            code_challenge_method="S256",
            timeout=_TIMEOUT,
        )

    def _provider(self, *, again: bool = False) -> tuple[dict[str, Any], Any]:
        """What the provider says about itself, and its keys."""
        import httpx
        from joserfc.jwk import KeySet

        if not again and self._known is not None and self._known[0] > time.monotonic():
            return self._known[1:]
        issuer = self._settings["issuer"]
        address = issuer.rstrip("/") + "/.well-known/openid-configuration"
        about = httpx.get(address, timeout=_TIMEOUT).raise_for_status().json()
        if about["issuer"] != issuer:
            raise ValueError("another issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            check_url(about[name], name)
        keys = httpx.get(about["jwks_uri"], timeout=_TIMEOUT).raise_for_status().json()
        self._known = time.monotonic() + _FRESH, about, KeySet.import_key_set(keys)
        return self._known[1:]

    def leave(self, value: str) -> str:
        """Return the address of the provider to which a browser with this cookie goes."""
        try:
            about, _ = self._provider()
        except Exception as error:
            log.error("the OpenID provider cannot be used: %s", type(error).__name__)
            raise Unavailable("your organisation cannot be reached", None, "try later") from None
        with self._client() as client:
            address, _ = client.create_authorization_url(
                about["authorization_endpoint"],
                state=derived(value, "state"),
                nonce=derived(value, "nonce"),
                code_verifier=derived(value, "verifier"),
            )
        return str(address)

    def arrive(self, value: str, query: Mapping[str, str]) -> Person:
        """Return the person whom the provider sends back to a browser with this cookie."""
        given = query.get("state", "").encode("utf-8", "replace")
        if not value or not hmac.compare_digest(derived(value, "state").encode(), given):
            raise NotSignedIn
        if query.get("iss", self._settings["issuer"]) != self._settings["issuer"]:
            raise NotSignedIn
        try:
            claims = self._claims(value, query["code"])
        except Exception as error:  # its message may quote what was sent
            log.error("the OpenID provider signed nobody in: %s", type(error).__name__)
            raise NotSignedIn from None
        return self._person(claims)

    def _claims(self, value: str, code: str) -> dict[str, Any]:
        """Exchange a code for the claims about a person, and check them."""
        about, keys = self._provider()
        with self._client() as client:
            token = client.fetch_token(
                about["token_endpoint"], code=code, code_verifier=derived(value, "verifier")
            )
            claims = self._verified(token["id_token"], keys, derived(value, "nonce"))
            wanted = {self._settings["name"], self._settings["groups"]}
            if wanted - set(claims) and "userinfo_endpoint" in about:
                check_url(about["userinfo_endpoint"], "userinfo_endpoint")
                told = client.get(about["userinfo_endpoint"]).raise_for_status().json()
                if told["sub"] != claims["sub"]:
                    raise ValueError("claims about somebody else")
                claims = told | claims
        return claims

    def _verified(self, text: str, keys: Any, nonce: str) -> dict[str, Any]:
        """The claims of an ID token whose signature and facts are right."""
        from joserfc import errors, jwt

        try:
            token = jwt.decode(text, keys, algorithms=_ALGORITHMS)
        except (errors.InvalidKeyIdError, errors.BadSignatureError, ValueError):
            token = jwt.decode(text, self._provider(again=True)[1], algorithms=_ALGORITHMS)
        client = self._settings["client"]
        jwt.JWTClaimsRegistry(
            leeway=_LEEWAY,
            iss={"essential": True, "value": self._settings["issuer"]},
            aud={"essential": True, "value": client},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
            sub={"essential": True},
        ).validate(token.claims)
        claims: dict[str, Any] = token.claims
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else client) != client:
            raise ValueError("a token for somebody else")
        return claims

    def _person(self, claims: Mapping[str, Any]) -> Person:
        """The person of some claims, with the role and the groups that they give."""
        subject = f"{self._settings['issuer']} {claims['sub']}"
        groups = _groups(claims.get(self._settings["groups"]))
        role = self._role(groups)
        if role is None:
            self._store.write(lambda connection: _end_access(connection, subject, groups))
            raise Denied("your groups give you no role here", "role", "ask an owner")
        given = str(claims.get("email") or "") if claims.get("email_verified") is True else ""
        mail = given if MAIL.fullmatch(given) else ""  # one address: mail would go to all of a list
        values = {"groups": json.dumps(groups, ensure_ascii=False), "mail": mail}

        def work(connection: sql.Connection) -> str:
            joined = people.join(profiles, profiles.c.person == people.c.name)
            known = connection.execute(
                sql.select(people, profiles.c.groups)
                .select_from(joined)
                .where(profiles.c.subject == subject)
            ).first()
            if known is None:
                known = self._linked(connection, claims, role)
            if known.disabled:  # here, whatever the provider says
                raise NotSignedIn(wrong=False)
            if (known.role, known.groups) != (role, values["groups"]):
                connection.execute(
                    people.update().where(people.c.name == known.name).values(role=role)
                )
                detail = {"name": known.name, "role": role, "groups": groups}
                audit_log.record(connection, _PROVIDER, "change person", detail)
            write_profile(connection, known.name, values | {"subject": subject})
            return str(known.name)

        return Person(self._store.write(work), role)

    def _linked(self, connection: sql.Connection, claims: Mapping[str, Any], role: str) -> Any:
        """The person who signs in for the first time: a new one, or one with the same name."""
        if self._settings["name"] == "email" and claims.get("email_verified") is not True:
            valid = "let your organisation verify it"  # anybody may have typed it there
            raise Denied("your address is not verified", "name", valid)
        try:
            name = check_name(str(claims.get(self._settings["name"]) or ""))
        except InvalidInput as error:
            raise Denied("your name cannot be used here", "name", error.valid) from None
        query = (
            sql.select(people, profiles.c.groups, profiles.c.subject)
            .outerjoin(profiles, profiles.c.person == people.c.name)
            .where(people.c.name == name)
        )
        known = connection.execute(query).first()
        if known is not None and (known.subject is not None or not self._settings["link_people"]):
            raise Conflict("another person has your name here", "name", "ask an owner")
        if known is None:
            values = {"name": name, "role": role, "created": time.time(), "disabled": False}
            connection.execute(people.insert().values(**values))
            detail = {"name": name, "role": role}
            audit_log.record(connection, _PROVIDER, "add person", detail)
            known = connection.execute(query).first()
        return known

    def _role(self, groups: list[str]) -> str | None:
        """The role that some groups give, the first of owner, auditor and analyst; or None."""
        given = {self._settings["roles"].get(group) for group in groups}
        for role in (OWNER, AUDITOR, ANALYST):
            if role in given:
                return role
        return None


def _end_access(connection: sql.Connection, subject: str, groups: list[str]) -> None:
    """End what a person without a role still has here: sessions, tokens, the role, the groups."""
    query = sql.select(profiles.c.person).where(profiles.c.subject == subject)
    known = connection.execute(query).first()
    if known is None:
        return
    name = known.person
    connection.execute(people.update().where(people.c.name == name).values(role=ANALYST))
    write_profile(connection, name, {"groups": json.dumps(groups, ensure_ascii=False)})
    connection.execute(tokens.update().where(tokens.c.person == name).values(revoked=True))
    connection.execute(sessions.delete().where(sessions.c.person == name))
    detail = {"name": name, "role": None, "groups": groups}
    audit_log.record(connection, _PROVIDER, "change person", detail)


def new_value() -> str:
    """Return the value of a cookie for one sign-in."""
    return secrets.token_urlsafe(32)


def derived(value: str, purpose: str) -> str:
    """Return what a sign-in uses for one purpose."""
    return hmac.digest(value.encode(), f"expost openid {purpose}".encode(), "sha256").hex()


def _groups(given: Any) -> list[str]:
    """The groups of a claim, without those that cannot be named here."""
    listed = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    groups = set()
    for group in listed[:1000]:
        try:
            groups.add(check_group(str(group)))
        except InvalidInput:
            continue
    return sorted(groups)
