"""OpenTelemetry: calls with method, route and status; no path, no query, no person, no row."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expost.server import serving
from expost.server.app import create_app
from expost.server.server_settings import ServerSettings
from tests.server.running_server import QUESTION, Server, furnish, visits

pytest.importorskip("opentelemetry.sdk")


def test_spans_hold_what_the_log_holds(tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    settings = ServerSettings(tmp_path / "server", tick=0.0, threads=0, pricers=0)
    app = create_app(settings, run=False, tracer=provider.get_tracer("test"))
    with TestClient(app, base_url="http://localhost") as client:
        server = Server(tmp_path, app, client, furnish(app.state.service, tmp_path))
        asked = server.ask("ann", QUESTION, "one").json()["id"]
        server.call("ann", "GET", f"/api/requests/{asked}?text=secret")
        server.call("olga", "PUT", "/api/datasets/visits", visits(tmp_path / "visits.csv"))
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["POST /api/requests", "GET /api/requests/{id}"]
    names = {"http.request.method", "http.route", "http.response.status_code"}
    assert all(set(span.attributes or ()) == names for span in spans)
    told = json.dumps([span.to_json() for span in spans])
    assert not any(word in told for word in (asked, "ann", "secret", "visits"))


def test_the_collector_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real exporter, and a collector that is only told names."""
    assert serving.server_tracer() is None
    sent: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        tracer = serving.server_tracer()
        tracer.start_span("GET /api/health").end()
        tracer.span_processor.force_flush()
        tracer.span_processor.shutdown()
        collector.shutdown()
    assert [path for path, _ in sent] == ["/v1/traces"]
    assert b"GET /api/health" in sent[0][1]
