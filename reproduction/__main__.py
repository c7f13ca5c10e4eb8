"""``python -m reproduction``: the paper's tables and figures, recomputed."""

from expost.cli.main import run
from reproduction.cli import app

run(app)
