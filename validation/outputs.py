"""Places to write to, looked at before anything is measured or drawn."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click


def check_file(option: str, path: Path | None, example: str) -> None:
    """Refuse a file that could not be written; nothing is made.

    Raises
    ------
    ValueError
        If it is a folder, or its folder cannot be made or written to.
    """
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option}={path}: is a folder; expected a file, e.g. {path / example}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{option}={path}: the file is write-protected; choose another")
    check_folder(option, path.parent, path)


def check_folder(option: str, folder: Path | None, asked: Path | None = None) -> None:
    """Refuse a folder that could not be made or written to; nothing is made.

    Raises
    ------
    ValueError
        If it, or the nearest folder above it that exists, cannot be written to.
    """
    if folder is None:
        return
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        # Trying is the only sure test: permissions say nothing to the superuser or in special places.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"{option}={asked or folder}: cannot write in {there} ({error.strerror}); choose another folder"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder where it is missing, and say so."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        click.echo(f"made folder {folder}", err=True)
