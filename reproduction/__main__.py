"""``python -m reproduction``: recompute the paper's tables and figures."""

from expost.cli.main import run
from reproduction.cli import app

run(app)
