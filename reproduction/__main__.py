"""``python -m reproduction``: recompute the paper's tables and figures."""

from expost.cli.main import run_command
from reproduction.cli import app

run_command(app)
